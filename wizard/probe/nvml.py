"""NVML behind one call, and the rule that an error costs one field only."""

from __future__ import annotations

from typing import Any, Protocol

import pynvml  # type: ignore[import-untyped]

from wizard.probe.gpu_report import Fault


class NvmlCall(Protocol):
    """Calls one NVML function by name; raises `pynvml.NVMLError`."""

    def __call__(self, function: str, *arguments: Any) -> Any: ...


def call_nvml(function: str, *arguments: Any) -> Any:
    """Call pynvml itself."""
    return getattr(pynvml, function)(*arguments)


class FieldReader:
    """Reads fields one by one and keeps what each failed read said."""

    def __init__(self, call: NvmlCall) -> None:
        self.call = call
        self.faults: list[Fault] = []
        self.unsupported: set[str] = set()
        """Fields that NVML does not have for this board, as against those it failed to read."""

    def read(self, field: str, function: str, *arguments: Any) -> Any | None:
        """Return the value, or None with a fault noted for `field`."""
        try:
            return self.call(function, *arguments)
        except (pynvml.NVMLError, UnicodeDecodeError) as error:
            self.faults.append(Fault(field, str(error)))
            if isinstance(error, pynvml.NVMLError_NotSupported):
                self.unsupported.add(field)
            return None

    def optional(self, field: str, absent: Any, function: str, *arguments: Any) -> Any | None:
        """Like `read`, but give `absent` where the board or the driver does not know the feature at all."""
        try:
            return self.call(function, *arguments)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
            return absent
        except pynvml.NVMLError as error:
            self.faults.append(Fault(field, str(error)))
            return None

    def quiet(self, function: str, *arguments: Any) -> Any | None:
        """Return the value, or None where its absence is an answer in itself."""
        try:
            return self.call(function, *arguments)
        except pynvml.NVMLError:
            return None
