"""A model's facts as people read them, and what they may type to name one."""

from __future__ import annotations

import os

from wizard.facts import Architecture
from wizard.model.catalog import Preset, presets
from wizard.model.consent import DIGEST
from wizard.text import count


def facts_of(architecture: Architecture) -> list[tuple[str, str]]:
    """Return `(name, value)` of what decides how a model trains."""
    found = architecture
    facts = [("class", found.class_name), ("parameters", f"{found.parameters:,} ({count(found.parameters)})")]
    if found.num_experts:
        facts.append(("active", f"{found.active_parameters:,} ({count(found.active_parameters)})"))
        facts.append(("experts", f"{found.num_experts_per_token} of {found.num_experts}"))
    facts += [
        ("dtype", found.dtype or "not given"),
        ("layers × hidden", f"{found.num_layers} × {found.hidden_size}"),
        ("heads (key-value)", f"{found.num_attention_heads} ({found.num_key_value_heads}) of {found.head_dim}"),
        ("vocabulary", f"{found.vocab_size:,}"),
        ("context", f"{found.max_position_embeddings:,} tokens"),
        ("tied embeddings", "yes" if found.tied_embeddings else "no"),
        ("KV cache", f"{found.kv_bytes_per_token:,} bytes a token"),
    ]
    if found.saved_bytes_per_token:
        facts.append(("kept by a layer", f"{found.saved_bytes_per_token:,} bytes a token, without checkpointing"))
    if found.has_vision:
        facts.append(("vision", "yes"))
    if found.remote_code:
        facts.append(("code", "of its own, run after consent"))
    return facts


def model_and_revision(text: str) -> tuple[str, str]:
    """Split `owner/name@commit` and `folder@sha256:digest`; a folder keeps an `@` of its own."""
    text = text.strip()
    named, _, digest = text.rpartition("@")
    if named and DIGEST.fullmatch(digest):
        return named, digest
    if "@" not in text or os.path.exists(os.path.expanduser(text)) or text.startswith((".", "/", "~")):
        return text, ""
    model, _, revision = text.rpartition("@")
    return model, revision


def matching_presets(text: str) -> tuple[Preset, ...]:
    """Return the presets that hold every word of `text` in their id or title, all of them for no words."""
    words = text.lower().replace("/", " ").split()
    return tuple(preset for preset in presets() if all(word in f"{preset.id} {preset.title}".lower() for word in words))


def critic_access(model: str, revision: str, *, trusted: bool) -> tuple[str, bool]:
    """Return revision and trust for a critic's own model, given the policy's.

    A digest says the same of any folder, so the critic's may bring the very code that was agreed to. A commit belongs
    to the policy's repository alone.
    """
    same_code = DIGEST.fullmatch(revision) is not None and os.path.isdir(os.path.expanduser(model))
    return (revision if same_code else "", trusted)
