"""The built-in model: real files of a small Qwen2, made on the spot, so that everything runs without a hub or GPU.

Standard library at import; `write_tiny` runs in the target interpreter and needs torch and transformers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from wizard.model.errors import ModelError
from wizard.state import cache_folder
from wizard.target import target_command

TINY_ID = "tiny"

TINY_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 384,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
    "torch_dtype": "bfloat16",
}
"""Small enough for a laptop, with grouped-query attention and an untied head like the models people train."""

_SPECIAL = ("<|begin|>", "<|end|>", "<|pad|>")
_CHAT = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
_SEED = 0
_TIME_LIMIT_SECONDS = 180


def tiny_folder() -> Path:
    """Return where the built-in model's files are or will be."""
    return cache_folder() / "tiny-model"


def ensure_tiny(python: str = "") -> Path:
    """Return the folder with the built-in model, written by the target interpreter if it is not there yet.

    Raises:
        ModelError: the interpreter cannot write it.
    """
    folder = tiny_folder()
    if (folder / "config.json").exists():
        return folder
    command = target_command(python, "wizard.model.tiny", [str(folder)])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIME_LIMIT_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ModelError(f"{folder}: {command[0]} could not write the built-in model: {error}") from error
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise ModelError(f"{folder}: {command[0]} could not write the built-in model: {last}")
    return folder


def write_tiny(folder: Path) -> None:
    """Write config, random weights (seeded) and a byte-level tokenizer; the folder appears complete or not at all."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

    config = Qwen2Config.from_dict(TINY_CONFIG)
    torch.manual_seed(_SEED)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=_SPECIAL[0], eos_token=_SPECIAL[1], pad_token=_SPECIAL[2]
    )
    wrapped.chat_template = _CHAT
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent)
    try:
        model.save_pretrained(temporary)
        wrapped.save_pretrained(temporary)
        os.chmod(temporary, 0o755)
        os.rename(temporary, folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        # Another process may have been first; then its folder is as good as ours.
        if not (folder / "config.json").exists():
            raise


def main(argv: list[str]) -> int:
    """Write the model into the folder given."""
    write_tiny(Path(argv[0]))
    return 0
