"""`verl-wizard inspect MODEL`."""

from __future__ import annotations

import argparse
import json
import sys

import msgspec

from wizard.commands.options import add_model_access, fail
from wizard.facts import Architecture
from wizard.model.errors import ModelError
from wizard.model.resolve import resolve_model
from wizard.text import count, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="local folder, Hugging Face id, preset, or `tiny`")
    parser.add_argument("--role", choices=("actor", "critic"), default="actor", help="critic: with a value head")
    add_model_access(parser)
    parser.add_argument("--json", action="store_true", help="the whole architecture as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the architecture; exit 1 when the model cannot be used."""
    try:
        found = resolve_model(
            arguments.model,
            python=arguments.python,
            revision=arguments.revision,
            trust_remote_code=arguments.trust_remote_code,
            role=arguments.role,
        )
    except ModelError as error:
        return fail(str(error))
    if arguments.json:
        json.dump(msgspec.to_builtins(found), sys.stdout)
        print()
    else:
        print(architecture_text(arguments.model, found))
    return 0


def architecture_text(model: str, found: Architecture) -> str:
    """Return what people want to know about a model, as lines."""
    facts = [
        ("class", found.class_name),
        ("parameters", f"{found.parameters:,} ({count(found.parameters)})"),
        ("dtype", found.dtype or "not given"),
        ("layers × hidden", f"{found.num_layers} × {found.hidden_size}"),
        ("heads (key-value)", f"{found.num_attention_heads} ({found.num_key_value_heads})"),
        ("vocabulary", f"{found.vocab_size:,}"),
        ("context", f"{found.max_position_embeddings:,} tokens"),
        ("tied embeddings", "yes" if found.tied_embeddings else "no"),
        ("KV cache", f"{found.kv_bytes_per_token:,} bytes a token"),
    ]
    if found.num_experts:
        facts.insert(2, ("active", f"{found.active_parameters:,} ({count(found.active_parameters)})"))
        facts.append(("experts", f"{found.num_experts_per_token} of {found.num_experts}"))
    width = max(len(name) for name, _ in facts)
    lines = [model, *(f"  {name:{width}}  {value}" for name, value in facts), "", "layer classes"]
    rows = [
        (
            entry.name,
            f"{entry.count}",
            f"{entry.parameters / found.parameters:.1%}",
            count(entry.largest_parameters),
            entry.kind,
            "model" if entry.in_no_split_modules else "",
            "structure" if entry.detected else "",
        )
        for entry in found.layer_classes
    ]
    return "\n".join([*lines, table(("class", "count", "share", "unit", "kind", "named by", "found by"), rows)])
