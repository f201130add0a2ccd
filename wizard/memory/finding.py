"""The prediction as findings, so that what does not fit is told and mended like any other fault."""

from __future__ import annotations

from dataclasses import replace

from wizard.findings import Finding, Severity, Stage
from wizard.memory import predict
from wizard.memory.prediction import Prediction, PredictionError
from wizard.plan import Plan
from wizard.text import gib

FIELD = "memory"
DOUBT = 1.1
"""Up to a tenth above the GPU's memory the predictor may be wrong: a warning, not an error."""


def memory_findings(plan: Plan) -> tuple[Finding, ...]:
    """Return what does not fit: the phase of the GPU that needs most, and the host; empty where nothing is known."""
    try:
        prediction = predict(plan)
    except PredictionError:
        return ()
    found: list[Finding] = []
    if prediction.fits_gpu is False:
        found.append(_gpu(prediction))
    if prediction.fits_host is False:
        need, there = gib(prediction.host_bytes_per_node), gib(prediction.host_memory_bytes)
        message = f"a node's processes need {need} of its {there}; the kernel ends one of them."
        found.append(_finding("host-does-not-fit", Severity.WARNING, message, Stage.WORKERS))
    return tuple(found)


def _gpu(prediction: Prediction) -> Finding:
    memory = prediction.gpu_memory_bytes
    phase = max((phase for phase in prediction.phases if not phase.fits(memory)), key=lambda one: one.needed_bytes)
    name = phase.name.replace("_", " ")
    if phase.needed_bytes > memory:
        message = f"{name} needs {gib(phase.needed_bytes)} of a GPU's {gib(memory)}: it runs out of memory."
    else:
        message = f"{name} lacks {gib(phase.lacking_bytes)} for the weights and the cache of one longest sequence."
    sure = phase.needed_bytes > DOUBT * memory or phase.lacking_bytes
    severity = Severity.ERROR if sure else Severity.WARNING
    stage = Stage.ROLLOUT if phase.name == "rollout" else Stage.FIRST_STEP
    finding = _finding("gpu-does-not-fit", severity, message, stage)
    return replace(finding, fixes=prediction.remedies)


def _finding(id: str, severity: Severity, message: str, stage: Stage) -> Finding:
    return Finding(id, severity, FIELD, None, message, stage, source="docs/memory.md")
