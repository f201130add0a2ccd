"""`run.yaml`: the Plan as the smallest difference from verl's own defaults, each line with its reason."""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.compat import StringIO
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from generators.heading import heading
from wizard.plan import Plan
from wizard.verl.export import plan_to_overrides, reason_of

CONFIG_NAME = "run"
"""Name of the file without its suffix. verl's configuration folder has none of that name: with --config-dir, a file
named like one of verl's own is silently passed over for verl's (hydra-core 1.3 searches the primary path first)."""


def run_yaml(plan: Plan) -> str:
    """Return the YAML that `--config-dir DIR --config-name run` composes over verl's `ppo_trainer`."""
    root = CommentedMap()
    root["defaults"] = ["ppo_trainer", "_self_"]
    # Lets the file also be used through --config-path, where verl's folder is not searched by itself.
    root["hydra"] = CommentedMap({"searchpath": ["pkg://verl.trainer.config"]})
    taken_over = dict(plan.extra_overrides)
    for key, value in plan_to_overrides(plan).items():
        # What was taken over from a file is OmegaConf's text already: an interpolation in it stays one.
        _put(root, key.split("."), _plain(value, interpolated=key in taken_over), reason_of(key, plan))
    stream = StringIO()
    yaml = YAML()
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(root, stream)
    return heading(plan, "verl configuration; start it with run.sh") + stream.getvalue()


def _put(root: CommentedMap, path: list[str], value: Any, reason: str) -> None:
    owner, depth = root, 0
    for name in path[:-1]:
        owner = owner.setdefault(name, CommentedMap())
        depth += 1
    owner[path[-1]] = value
    owner.yaml_set_comment_before_after_key(path[-1], before=reason, indent=2 * depth)


def _plain(value: Any, *, interpolated: bool) -> Any:
    """Quote text that YAML 1.1 or OmegaConf would read as something else: `1e-6`, `yes`, `${HOME}`."""
    if isinstance(value, dict):
        return {name: _plain(child, interpolated=interpolated) for name, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, interpolated=interpolated) for item in value]
    if isinstance(value, str):
        return value if _is_bare(value) else DoubleQuotedScalarString(value if interpolated else _escaped(value))
    return value


def _is_bare(text: str) -> bool:
    import yaml

    try:
        return bool(text) and text.isprintable() and yaml.safe_load(text) == text and "${" not in text
    except yaml.YAMLError:
        return False


def _escaped(text: str) -> str:
    # OmegaConf reads `${` as an interpolation unless a backslash is before it; nothing else is special in a YAML value.
    return text.replace("${", "\\${")
