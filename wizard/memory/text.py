"""The estimate as tables for people."""

from __future__ import annotations

from wizard.memory.prediction import GroupPeak, Prediction
from wizard.memory.roofline import StepTime
from wizard.text import GIB, gib, table


def estimate_text(prediction: Prediction, time: StepTime) -> str:
    """Return the estimate as tables."""
    rows = [
        (
            phase.name.replace("_", " "),
            gib(phase.peak_allocated_bytes),
            gib(phase.needed_bytes),
            phase.at,
            ", ".join(f"{cause.replace('_', ' ')} {gib(size)}" for cause, size in _largest(phase.breakdown)),
        )
        for phase in prediction.phases
    ]
    lines = [table(("phase", "allocated", "needed", "at", "held by"), rows), ""]
    if prediction.has_groups:
        lines += ["a GPU of each group, at its peak:", *(f"  {group_text(group)}" for group in prediction.groups), ""]
    if prediction.gpu_memory_bytes:
        verdict = "fits" if prediction.fits_gpu else "does not fit"
        lines.append(f"{verdict} {gib(prediction.gpu_memory_bytes)} a GPU; largest token budget of the update: "
                     f"{prediction.largest_token_budget}")  # fmt: skip
    host = f"host memory of a node: {gib(prediction.host_bytes_per_node)}"
    causes = ", ".join(f"{cause} {gib(size)}" for cause, size in _largest(prediction.host_breakdown))
    lines.append(f"{host} ({causes})")
    lines += [f"  {fix.label}" for fix in prediction.remedies]
    lines += ["", f"update of a mini-batch, an estimate: {time.seconds:.2f} s, bound by {time.bound_by}"]
    lines += [f"  {name}: {seconds:.3f} s" for name, seconds in time.parts.items()]
    lines += [f"  assumes {assumption}" for assumption in time.assumptions]
    return "\n".join(lines)


def group_text(group: GroupPeak) -> str:
    """Return a group's roles, its GPUs, and what one of them needs at most."""
    return f"{'+'.join(group.group.roles)} ({group.group.nodes} × {group.group.gpus_per_node}): {peak_text(group)}"


def peak_text(group: GroupPeak, capacity_bytes: int = 0) -> str:
    """Return what one GPU of a group needs at most, and in which phase."""
    phase = group.peak
    if phase is None:
        return "its memory is not predicted"
    needed = phase.needed_bytes
    text = f"{needed / GIB:.1f} of {gib(capacity_bytes)}" if capacity_bytes else gib(needed)
    over = " TOO MUCH" if group.fits(capacity_bytes) is False else ""
    return f"{text}{over} in {phase.name.replace('_', ' ')}"


def _largest(sizes: dict[str, int], shown: int = 4) -> list[tuple[str, int]]:
    return sorted(sizes.items(), key=lambda entry: -entry[1])[:shown]
