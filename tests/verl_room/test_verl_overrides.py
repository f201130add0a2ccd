"""Our reading of command line overrides against Hydra's own parser."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wizard.verl.overrides import OverrideError, override_text, parse_override

PARSER = OverridesParser.create()
MODES = {OverrideType.CHANGE: "", OverrideType.ADD: "+", OverrideType.FORCE_ADD: "++", OverrideType.DEL: "~"}
REFUSED = "refused"

TABLE = (
    "a=1", "a.b=1e-6", "a=1_000", "a=0x10", "a=007", "a=-0", "a=+5", "a=+1.5", "a=.5", "a=5.", "a=1e5", "a=1E+5",
    "a=-1.5e-3", "a=inf", "a=-inf", "a=nan", "a=NaN", "a=INF", "a=1.0.0", "a=1__0", "a=1_0.5", "a=-1_0",
    "a=true", "a=TRUE", "a=tRue", "a=null", "a=NULL", "a=None", "a=True ", "a= true", "a=yes", "a=off", "a=~",
    "a=", "a=''", 'a=""', "a='x'", 'a="x y"', r"a='it\'s'", r"a='back\\slash'", r"a='x\\'", r"a='\t'", "a='$x'",
    "a='${b}'", 'a="${b}"', "a=${b}", "a=${.b}", "a=x${b}y", "a=${oc.env:HOME}", "a=${oc.select:b,1}", "a=$b", "a='1'",
    "a=[1,2]", "a=[1, 2]", "a=[ ]", "a=[]", "a=['a','b']", 'a=["a", "b"]', "a=[a b]", "a=[[1],[2]]", "a=[1,[2,x]]",
    "a=['x,y']", "a=['x]','y']", "a=[,]", "a=[1,]", "a=[a=b]", "a=['a'b]", "a=[null,true,1.5]", "a=[1 , 2 ]",
    "a=[\t1]", "a=['a\"b']", "a=['it','s']", "a=[''']", "a={b:1}", "a={b: 1, c: x}", "a={}", "a={b:[1,2]}",
    "a={'b':1}", "a={1:2}", "a=x,y", "a=1,2", "a=choice(1,2)", "a=range(1,3)", "a=glob(*)", "a=int(3.5)",
    "a=str(1)", "a=float(1)", "a=bool(1)", "a=json_str('[1]')", "a=shuffle(1,2)", "a=foo(1)", "a=(x)",
    "a=/data/x.parquet", "a=~/data/x.parquet", "a=./x", "a=hdfs://x/y", "a=s3://x", "a=C:/x", "a=a:b", "a=10:30",
    "a=x-y_z.1", "a=x@y", "a=x%y", "a=x+y", "a=x*y", "a=x|y", "a=x?y", "a=x#y", "a=x;y", "a=x!y", "a=x&y", "a=<x>",
    "a=-x", "a=--x", "a=-", "a=.", "a=..", "a=*", "a=@", "a=+", "a=|", "a=%", "a=1x", "a=1-2", "a=-1-x", "a=1.x",
    "a=1e", "a=e1", "a=_", "a=_1", "a=a b", "a=a  b", "a=a\tb", "a= x", "a=x ", "a=x\n", "a=\n", "a=é", "a='é'",
    "a=日本", "a=x=y", "a==", "a=b=c=d", "a=x\\,y", "a=x\\ y", "a=\\[x", "a=x\\", "a=\\", "a=nullx", "a=true_", "a=inf1",
    "a=nan.x", "a=null.x", "a=1,", "a=,", "a={", "a=}", "a=]", "a=[", "a=(", "a='", 'a="', "a=x'y", "a='x'y",
    "+a=1", "++a=1", "+++a=1", "~a", "~a=1", "~a=", "~a.b", "~", "+", "++", "+a", "a", "a.b", "", "=", "=1", " a=1",
    "a =1", "a.=1", ".a=1", "a..b=1", "a.1=2", "1.a=2", "1a=2", "a-b=1", "a/b=c", "a/b@c=d", "a@b=c", "a@b:c=d",
    "a@=c", "+a/b=c", "a.b-c.d=1", "a[0]=1", "a[b]=1", "$a=1", "a$=1", "é=1", "_a=1", "a_=1", "A.B=1",
    "hydra.run.dir=.", "hydra/launcher=basic", "a=b@c", "--multirun", "-m", "@a=b",
    f"a={10**400}", f"a={'9' * 30}", "a=1e400", "a=1e-400", f"a={'x' * 5000}", "a=" + "[" * 30 + "]" * 30,
)  # fmt: skip


def hydras(text: str) -> Any:
    """Return what Hydra reads: key, mode, whether it sweeps, and the value as text that tells types apart."""
    try:
        found: Override = PARSER.parse_override(text)
        sweep = found.is_sweep_override()
        value = None if sweep else found.value()
    except HydraException:
        return REFUSED
    key = found.key_or_group if found.package is None else f"{found.key_or_group}@{found.package}"
    return key, MODES[found.type], sweep, repr(value)


def ours(text: str) -> Any:
    try:
        found = parse_override(text)
    except OverrideError:
        return REFUSED
    return found.key, found.mode, found.is_sweep, repr(found.value)


@pytest.mark.parametrize("text", TABLE, ids=lambda text: ascii(text)[:40])
def test_as_hydra_reads_it(text: str):
    assert ours(text) == hydras(text)


KEYS = st.from_regex(r"[+~]{0,2}[a-zA-Z_][a-zA-Z0-9_]{0,5}(\.[a-z_0-9]{1,5}){0,3}(@[a-z]{1,3})?", fullmatch=True)
WORDS = st.text(string.ascii_letters + string.digits + "_/.-@%+*|:?~", max_size=8)
NUMBERS = st.one_of(
    st.integers().map(str), st.floats().map(repr),
    st.from_regex(r"[-+]?[0-9_]*\.?[0-9_]*([eE][-+]?[0-9]*)?", fullmatch=True),
)  # fmt: skip
QUOTED = st.text("abc ,[]{}'\"\\$:=.#", max_size=8).flatmap(lambda inner: st.sampled_from((f"'{inner}'", f'"{inner}"')))
NOISE = st.text(string.ascii_letters[:4] + "0123456789" + " ,[]{}()'\"\\$:=.+-~_/@%*|\t\n#", max_size=10)
SCALARS = st.one_of(WORDS, NUMBERS, QUOTED, st.sampled_from(("null", "True", "fALSE", "nan", "-inf", "${a.b}", "")))
LISTS = st.tuples(st.sampled_from(("", " ")), st.lists(SCALARS, max_size=4), st.sampled_from((",", ", ", " ,"))).map(
    lambda parts: f"[{parts[0]}{parts[2].join(parts[1])}{parts[0]}]"
)
VALUES = st.one_of(SCALARS, LISTS, NOISE)


@settings(max_examples=400, deadline=None)
@given(KEYS, VALUES)
def test_any_override_is_read_as_hydra_reads_it(key: str, value: str):
    assert ours(f"{key}={value}") == hydras(f"{key}={value}")


@settings(max_examples=250, deadline=None)
@given(NOISE)
def test_any_text_is_read_or_refused_as_by_hydra(text: str):
    assert ours(text) == hydras(text)


@pytest.mark.parametrize(
    "text",
    [
        "a=" + "[" * 3000 + "]" * 3000, "a=" + "{b:" * 500 + "1" + "}" * 500, "a=" + "9" * 5000, "a=int(" + "9" * 5000 + ")",
        "a=" + "x" * 200_000, "a=[" + "'" * 3001 + "]", "a=int(nan)", "a=int(1e400)",
    ],
    ids=lambda text: text[:8],
)  # fmt: skip
def test_what_would_exhaust_the_parser_is_refused_in_few_words(text: str):
    with pytest.raises(OverrideError) as refusal:
        parse_override(text)
    assert len(str(refusal.value)) < 500


def test_a_long_list_is_read_in_linear_time():
    assert parse_override("a=[" + "'x'," * 30_000 + "'x']").value == ["x"] * 30_001


NAMES = st.from_regex(r"[a-z_]([a-z0-9 .,:=()\[\]{}/\\-]{0,5}[a-z0-9_])?", fullmatch=True)
JSON_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=12),
        st.text("ab'\"\\,[]{}$ \t\n:=", max_size=12), st.sampled_from(("null", "true", "1", "1e5", "nan", "~", "a b", "")),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.from_regex("[a-z_][a-z0-9_]{0,4}", fullmatch=True), inner, max_size=3),
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(JSON_VALUES, st.sampled_from(("", "+", "++")))
@example("\\\n", "")
def test_written_overrides_are_read_back(value: Any, mode: Any):
    text = override_text("a.b", value, mode)
    again = parse_override(text)
    assert (again.key, again.mode, repr(again.value)) == ("a.b", mode, repr(value))
    assert hydras(text) == ("a.b", mode, False, repr(value))


@settings(max_examples=150, deadline=None)
@given(NAMES)
def test_names_in_blocks_are_written_with_escapes(name: str):
    assert hydras(override_text("a", {name: 1}))[3] == repr({name: 1})


def test_deletions_are_written_with_and_without_value():
    assert override_text("a", None, "~") == "~a"
    assert override_text("a", 1, "~") == "~a=1"
    assert override_text("a", None, "file") == "a=null"
