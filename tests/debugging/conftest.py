"""Plans of the built-in model and of models with code of their own."""

from __future__ import annotations

from tests.faults.conftest import model, tiny  # noqa: F401
from tests.validation.conftest import make_spec  # noqa: F401
