"""The ten steps, in order."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from screens.base import StepScreen


@dataclass(frozen=True)
class Step:
    """One step of the wizard; its screen is imported when it is first shown."""

    id: str
    title: str
    class_name: str

    def make(self) -> StepScreen:
        """Return a new screen of this step."""
        screen: StepScreen = getattr(importlib.import_module(f"screens.{self.id}"), self.class_name)()
        return screen


STEPS = (
    Step("environment", "Environment", "EnvironmentScreen"),
    Step("gpus", "GPUs", "GpusScreen"),
    Step("model", "Model", "ModelScreen"),
    Step("layer_classes", "Layer classes", "LayerClassesScreen"),
    Step("precision", "Precision", "PrecisionScreen"),
    Step("offload", "Offload", "OffloadScreen"),
    Step("batches", "Sequence & batches", "BatchesScreen"),
    Step("placement", "Placement", "PlacementScreen"),
    Step("review", "Review", "ReviewScreen"),
    Step("validate", "Validate", "ValidateScreen"),
)
