from pathlib import Path

import pytest

from wizard.scrub import scrub


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("HF_TOKEN=hf_abcdefghijklmnop", "hf_abcdefghijklmnop"),
        ("export WANDB_API_KEY='0123456789abcdef'", "0123456789abcdef"),
        ("https://me:s3cr3t@example.com/x", "s3cr3t"),
        ("Authorization: Bearer abc.def-123456", "abc.def-123456"),
        ('{"aws_secret_access_key": "AbCd/1234"}', "AbCd/1234"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
        ("db_password: hunter22", "hunter22"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----", "MIIE"),
    ],
)
def test_secrets_go(text: str, secret: str):
    assert secret not in scrub(text)
    assert "[hidden]" in scrub(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_num_batched_tokens=8192",
        "ppo_max_token_len_per_gpu: 16384",
        "tokenizer: Qwen2TokenizerFast",
        "pad_token_id=151643",
    ],
)
def test_settings_stay(text: str):
    assert scrub(text) == text


def test_home_paths_lose_the_name():
    assert scrub(f"{Path.home()}/models/x") == "~/models/x"
    assert scrub("/home/alice/run.log") == "/home/user/run.log"
