"""What a Plan will take of GPU and host memory, phase by phase, without torch."""

from __future__ import annotations

import functools

from wizard.memory.host import host_memory
from wizard.memory.predict import PLANNED, groups_of, phases_of
from wizard.memory.prediction import GroupPeak, PhasePeak, Prediction, PredictionError
from wizard.memory.remedies import remedies, token_budget
from wizard.memory.roles import Exact
from wizard.model.units import NoUnits
from wizard.plan import Plan

__all__ = ["Exact", "GroupPeak", "PhasePeak", "Prediction", "PredictionError", "group_peaks", "predict"]


def group_peaks(plan: Plan) -> tuple[GroupPeak, ...]:
    """Return what one GPU of each group of roles goes through; nothing where that cannot be predicted."""
    try:
        return predict(plan).groups
    except PredictionError:
        return ()


@functools.lru_cache(maxsize=4)
def predict(plan: Plan, exact: Exact = PLANNED) -> Prediction:
    """Return the peaks of one GPU and the host memory of one node for a training step of `plan`.

    Remembered for the last Plans, as a screen's findings and its bar both ask.

    Args:
        exact: sizes and paths to take in place of what the Plan implies; remedies speak of the Plan all the same.

    Raises:
        PredictionError: the model has not been inspected, or verl would stop while it wraps it.
    """
    try:
        phases = tuple(phases_of(plan, exact))
        budget = token_budget(plan)
        host = host_memory(plan)
        fixes = remedies(plan, phases, budget)
    except NoUnits as error:
        raise PredictionError(str(error)) from error
    return Prediction(
        phases=phases,
        groups=groups_of(plan, phases),
        host_bytes_per_node=sum(host.values()),
        host_breakdown=host,
        gpu_memory_bytes=plan.machine.gpu_memory_bytes,
        host_memory_bytes=plan.machine.host_memory_bytes,
        largest_token_budget=budget,
        remedies=fixes,
    )
