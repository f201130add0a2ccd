"""What verl's own engine is given: the keys a Plan is written as, for the verl of the target interpreter."""

from __future__ import annotations

from typing import Any

from wizard.plan import Plan
from wizard.text import printable
from wizard.validation.spec import Device
from wizard.verl.export import plan_to_overrides
from wizard.verl.keys import ACTOR
from wizard.verl.schema import SchemaError, load_schema, minor_of
from wizard.verl.target import verl_version_of

ENGINE_MINOR = (0, 9)
"""The verl whose engine class is driven: names and places of its parts change with every minor release."""


class EngineError(ValueError):
    """The target interpreter has no verl whose engine could run the Plan."""


def engine_overrides(plan: Plan, device: Device, python: str = "") -> dict[str, Any]:
    """Return `{verl key: value}` of the Plan for the verl installed in `python` (empty: the Plan's interpreter).

    Raises:
        EngineError: there is no verl, or one of another minor release than 0.9.
    """
    python = python or plan.target.python
    where = printable(python) or "this interpreter"
    try:
        version = verl_version_of(python)
        if not version:
            raise EngineError(
                f"engine verl: {where} has no verl, whose engine would run. Install it there (pip install verl), name "
                "another interpreter (--python), or use engine torch, which shards as verl does."
            )
        if minor_of(version) != ENGINE_MINOR:
            raise EngineError(
                f"engine verl: {where} has verl {version}, and only the engine of verl 0.9 is known. Use engine torch, "
                "which shards as verl does."
            )
        overrides = plan_to_overrides(plan, load_schema(version))
    except SchemaError as error:
        raise EngineError(f"engine verl: {error}") from error
    if device == "cpu":
        # Compiling the entropy needs a C++ compiler there, and changes no number.
        overrides[f"{ACTOR}.fsdp_config.use_torch_compile"] = False
    return overrides
