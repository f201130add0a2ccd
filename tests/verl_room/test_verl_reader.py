"""Files that somebody else wrote: read as OmegaConf reads them, or refused with the line and the reason."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from wizard.plan import PlanError
from wizard.verl.importer import import_file, plan_from_file
from wizard.verl.reader import MAX_BYTES, MAX_DEPTH, ReadError, flat, read_file, read_text

SCALARS = (
    "1", "-1", "+1", "0", "010", "0o10", "0x1F", "0b11", "1_000", "1.5", "1e-6", "1e5", "1E5", "1.e5", ".5", "5.", "-.5e+3",
    "1e", "e1", ".inf", "-.inf", ".nan", "inf", "nan", "true", "True", "TRUE", "yes", "no", "on", "off", "y", "n", "null",
    "Null", "~", "''", '""', "'1'", '"true"', "x", "x y", "a:b", "10:30", "190:20:30", "2026-01-02", "2026-01-02T03:04:05Z",
    "/data/x.parquet", "~/data", "[1, 2]", "[a, 'b c', null]", "{a: 1, b: {c: 2}}", "[]", "{}", "'${a.b}'", "${a.b}", "???",
    "!!str 1", "!!int '1'", "!!float 1", "!!null ''", "!!bool 'true'", "é", "日本", "'a\u2028b'", "a#b", "a #b", "1.0.0", "v1", "0.9.1", "1__0", "_1", "0_1", "1e400", "9" * 40,
)  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return repr(one) == repr(other)


@pytest.mark.parametrize("text", SCALARS, ids=ascii)
def test_values_are_what_omegaconf_makes_of_them(text: str):
    theirs = OmegaConf.to_container(OmegaConf.create(f"k: {text}\n"))
    assert same(read_text(f"k: {text}\n", "x.yaml").value, theirs)


@settings(max_examples=300, deadline=None)
@given(st.from_regex(r"[-+]?[0-9_.:]{0,6}([eE][-+]?[0-9_]{0,3})?", fullmatch=True))
def test_numbers_are_what_omegaconf_makes_of_them(text: str):
    source = f"k: {text}\n"
    try:
        theirs = OmegaConf.to_container(OmegaConf.create(source))
    except Exception as error:
        theirs = error
    try:
        found = read_text(source, "x.yaml").value
    except ReadError as error:
        found = error
    assert isinstance(theirs, Exception) == isinstance(found, Exception)
    assert isinstance(found, Exception) or same(found, theirs)


REFUSED = {
    "a key twice": ("a:\n  b: 1\n  b: 2\n", "x.yaml:3: 'b' is given twice, first in line 2"),
    "a key twice at the top": ("trainer: {}\ndata: {}\ntrainer: {}\n", "x.yaml:3: 'trainer' is given twice"),
    "a tab": ("a:\n\tb: 1\n", "x.yaml:2: a tab indents this line"),
    "a control character": ("a: 1\nb: \x07\n", "x.yaml:2: a control character (0x7)"),
    "an escape sequence": ("a: \x1b[31m\n", "x.yaml:1: a control character (0x1b)"),
    "NUL": ("a: \0\n", "x.yaml:1: a control character (0x0)"),
    "an open bracket": ("a: [1, 2\nb: 3\n", "x.yaml:2"),
    "an open quote": ("a: 'x\n", "x.yaml"),
    "a Python object": ("a: !!python/object/apply:os.system ['true']\n", "tag"),
    "a Python name": ("a: !!python/name:os.system\n", "x.yaml:1"),
    "a set": ("a: !!set {x, y}\n", "tag:yaml.org,2002:set"),
    "bytes": ("a: !!binary aGVsbG8=\n", "x.yaml:1"),
    "a made-up tag": ("a: !mine x\n", "x.yaml:1"),
    "a made-up tag of a block": ("a: !mine {b: 1}\n", "!mine"),
    "two documents": ("a: 1\n---\nb: 2\n", "x.yaml"),
    "an unknown alias": ("a: *b\n", "x.yaml:1"),
    "an alias to itself": ("a: &a\n  b: *a\n", "alias refers to the block it stands in"),
    "a list aliased to itself": ("a: &a [1, *a]\n", "alias refers to the block it stands in"),
    "a mapping as a key": ("? {a: 1}\n: 2\n", "a key must be a single value"),
    "a list as a key": ("? [a]\n: 2\n", "a key must be a single value"),
    "a lone equals sign": ("a: =\n", "tag:yaml.org,2002:value"),
    "a merge of a text": ("a: {<<: x}\n", "x.yaml:1"),
    "deep flow": ("a: " + "[" * 5000 + "\n", "x.yaml:1"),
    "deep and closed": ("a: " + "[" * 5000 + "]" * 5000 + "\n", "x.yaml:1"),
    "deep blocks": ("".join(f"{' ' * i}a:\n" for i in range(500)), f"deeper than {MAX_DEPTH}"),
    "too many values": ("a: [" + "1," * 250_000 + "]\n", "more than 200000 values"),
    "an impossible int": ("a: !!int x\n", "x.yaml:1"),
    "more digits than Python converts": ("a: " + "9" * 5000 + "\n", "x.yaml:1"),
    "an impossible float": ("a: !!float x\n", "x.yaml:1"),
    "no bool": ("a: !!bool maybe\n", "x.yaml:1"),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_configuration_is_refused_with_its_line(text: str, said: str):
    with pytest.raises(ReadError) as refusal:
        read_text(text, "x.yaml")
    assert said in str(refusal.value)
    assert len(str(refusal.value)) < 400
    assert str(refusal.value).isprintable()


def test_a_billion_laughs_ends_at_once():
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    lines += [f"{n}: &{n} [{','.join([f'*{p}'] * 9)}]" for p, n in zip("abcdefghi", "bcdefghij", strict=True)]
    with pytest.raises(ReadError, match="aliases expand to more than"):
        read_text("\n".join(lines), "x.yaml")


def test_a_billion_laughs_by_merging_ends_at_once():
    """Each level merges the one above many times: harmless only where the reader drops what it has already."""
    wide = "a: &a {" + ",".join(f"k{i}: {i}" for i in range(50)) + "}\n"
    levels = "".join(
        f"{n}: &{n}\n  <<: [{','.join([f'*{p}'] * 30)}]\n" for p, n in zip("abcdef", "bcdefg", strict=True)
    )
    with pytest.raises(ReadError, match="aliases expand to more than"):
        read_text(wide + levels, "x.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc: {<<: [*a, *b], z: 5}\n",
        "a: &a {x: 1}\nb: {x: 2, <<: *a}\n",
        "a: &a {x: {p: 1, q: 2}}\nb: {<<: *a, x: {p: 3}}\n",
        "a: &a {x: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *b, x: 9}\n",
        "a: &a {x: 1}\nb: {<<: *a, <<: {y: 2}}\n",
        "a: &a [1, {b: 2}]\nc: [*a, *a]\n",
    ],
)
def test_merges_give_what_omegaconf_makes_of_them(text: str):
    assert read_text(text, "x.yaml").value == OmegaConf.to_container(OmegaConf.create(text))


def test_aliases_and_merges_mean_what_yaml_says():
    text = "base: &base {x: 1, y: 2}\nother:\n  <<: *base\n  y: 3\n  z: *base\n"
    found = read_text(text, "x.yaml").value
    assert found == OmegaConf.to_container(OmegaConf.create(text))
    assert found["other"] == {"x": 1, "y": 3, "z": {"x": 1, "y": 2}}


def test_lines_of_keys_and_items():
    document = read_text("# top\na:\n  b: 1\n  c:\n    - x\n    - y\nd: {e: 2,\n  f: 3}\n", "x.yaml")
    assert document.at("a", "b") == "x.yaml:3"
    assert document.at("a", "c", "1") == "x.yaml:6"
    assert document.at("d", "f") == "x.yaml:8"
    assert document.at("a", "c", "1", "below") == "x.yaml:6"
    assert document.at("nowhere") == "x.yaml"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_encodings_and_line_ends(encoding: str, newline: str, tmp_path: Path):
    path = tmp_path / "x.yaml"
    path.write_bytes(f"a: é日本{newline}b: 2{newline}".encode(encoding))
    document = read_file(path)
    assert document.value == {"a": "é日本", "b": 2}
    assert document.at("b") == f"{path}:2"


BYTES = {
    "latin-1": ("a: 1\nb: é\n".encode("latin-1"), ":2: not UTF-8"),
    "gzip": (b"\x1f\x8b\x08\x00abc", "not UTF-8"),
    "ELF": (b"\x7fELF\x02\x01\x01\0\0\0", "control character"),
    "UTF-16 cut short": ("a: 1".encode("utf-16")[:-1], "not UTF-16"),
    "too large": (b"a: " + b"x" * MAX_BYTES, "larger than 4 MiB"),
    "pickle": (b"\x80\x04\x95\x0b\0\0\0", "not UTF-8"),
}


@pytest.mark.parametrize(("data", "said"), BYTES.values(), ids=BYTES)
def test_files_that_are_no_text(data: bytes, said: str, tmp_path: Path):
    path = tmp_path / "x.yaml"
    path.write_bytes(data)
    with pytest.raises(ReadError, match=said):
        read_file(path)


NONSENSE = {
    "empty": b"", "only comments": b"# nothing\n", "a number": b"1\n", "a text": b"hello\n", "null": b"~\n",
    "a list of numbers": b"- 1\n- 2\n", "a list of blocks": b"- {a: 1}\n",
    "a binary": bytes(range(256)),
}  # fmt: skip


@pytest.mark.parametrize("data", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_no_configuration(data: bytes, tmp_path: Path):
    path = tmp_path / "x.yaml"
    path.write_bytes(data)
    with pytest.raises(ReadError, match=r"x\.yaml"):
        import_file(path)
    with pytest.raises(PlanError, match=r"x\.yaml"):
        plan_from_file(path)


def test_paths_that_are_no_files(tmp_path: Path):
    with pytest.raises(ReadError, match="holds neither"):
        import_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        import_file(tmp_path / "nowhere.yaml")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OSError, match="symbolic links"):
        import_file(tmp_path / "loop")


def test_json_is_yaml(tmp_path: Path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"trainer": {"nnodes": 2, "logger": ["console"]}, "data": {"train_batch_size": 1e3}}))
    config = import_file(path).config
    assert config.get("trainer.nnodes") == 2
    assert config.origin("trainer.nnodes").endswith("x.json:1")


SEEDS = (
    "trainer:\n  nnodes: 1\n  logger: [console]\nactor_rollout_ref:\n  actor: &x {strategy: fsdp2}\n  ref: *x\n",
    "- trainer.nnodes=1\n- +a.b=[1,2]\n- ~data.seed\n- model_engine=megatron\n",
    "defaults:\n  - ppo_trainer\n  - _self_\nhydra: {searchpath: [pkg://verl]}\ncritic:\n  <<: {a: 1}\n  optim.lr: 1\n",
    "target: {python: ''}\nmachine: {}\nbatches: {}\nextra_overrides: [[a, 1]]\n",
    '{"trainer": {"nnodes": "${oc.env:X,1}"}, "x": "${..y}"}',
    "? a\n: b\n1: 2\ntrue: x\n~: y\n'': z\n'a.b': c\n",
)


def read_anyhow(data: bytes, path: Path) -> None:
    """Read and use whatever the file holds: nothing but the documented errors may come out."""
    path.write_bytes(data)
    try:
        found = import_file(path)
    except (ReadError, PlanError, OSError):
        return
    for key in found.config.given:
        found.config.get(key)
        found.config.origin(key)
    found.config.unknown_keys()
    found.config.differences()
    try:
        plan_from_file(path)
    except PlanError:
        return


def mutated(data: bytes, chance: random.Random) -> bytes:
    pieces = [b"\t", b"\0", b"- ", b": ", b"[", b"]", b"{", b"}", b"&x ", b"*x", b"!!int ", b"'", b'"', b"\n", b"${", b"<<: ",
              b"9" * 30, b"\xff", b"\xef\xbb\xbf", b"---\n", b"? ", b"|\n", b"%YAML 1.1\n", b".", b"#", b"\xc3\xa9"]  # fmt: skip
    for _ in range(chance.randint(1, 6)):
        at = chance.randint(0, len(data))
        until = at if chance.random() < 0.5 else min(len(data), at + chance.randint(1, 8))
        data = data[:at] + (chance.choice(pieces) if chance.random() < 0.8 else b"") + data[until:]
    return data


def test_no_mutation_of_a_real_file_gets_past_the_reader(tmp_path: Path):
    chance = random.Random(7)
    for _ in range(1200):
        read_anyhow(mutated(chance.choice(SEEDS).encode(), chance), tmp_path / "x.yaml")


@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)  # fmt: skip
@given(data=st.binary(max_size=60) | st.text("ab:-[]{}&*!?|>'\"%@`#, \n\t<0.${}", max_size=60).map(str.encode))
def test_no_bytes_get_past_the_reader(data: bytes, tmp_path: Path):
    read_anyhow(data, tmp_path / "x.yaml")


def test_flat_keeps_what_is_no_plain_block():
    value = {"a": {"b": 1, "c": {}}, "d": {1: 2}, "e": {"x.y": 1}, "f": [{"g": 1}]}
    assert dict(flat(value)) == {
        ("a", "b"): 1, ("a", "c"): {}, ("d",): {1: 2}, ("e",): {"x.y": 1}, ("f",): [{"g": 1}],
    }  # fmt: skip
