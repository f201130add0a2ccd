"""Tables of docs/memory.md: the predictor and its peers against the same measurements, and the roofline against times.

    python tools/compare_peers.py            # prints the tables
    python tools/compare_peers.py --update   # writes them between the marks in docs/memory.md

Peers, as their sources state them:
- accelerate 1.15 `commands/estimate.py`: training with Adam takes four times the weights in the chosen dtype; nothing
  is sharded.
- DeepSpeed 0.18 `runtime/zero/stage3.py` estimate_zero3_model_states_mem_needs without offload: 4 × largest layer +
  18 bytes × parameters / GPUs.
- rule of thumb: 16 to 18 bytes a parameter, over the GPUs.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

from measured_rows import Row, plan_of, rows

from wizard.memory.reserved import reserved_bytes
from wizard.memory.roles import Exact, role_shape, update_step
from wizard.memory.roofline import Chip, chip_of, compute_seconds
from wizard.plan import Plan

GIB = 2**30
DOCUMENT = Path(__file__).parents[1] / "docs" / "memory.md"
Estimate = Callable[[Row], float]


def ranks_of(row: Row) -> int:
    """Ranks that share one copy of the parameters."""
    case = row.case
    return case.fsdp_size if 0 < case.fsdp_size < case.world_size else case.world_size


def accelerate_estimate(row: Row) -> float:
    """accelerate's `Training using Adam` column for float32."""
    return 4.0 * 4 * row.data["parameters"]


def deepspeed_zero3(row: Row) -> float:
    """DeepSpeed's bytes per GPU of parameters, gradients and optimizer; activations and buffers are not in it."""
    shape = role_shape(plan_of(row.case), "actor")
    largest = max([shape.embedding_parameters, shape.head_parameters, *(block.weights for block in shape.blocks)])
    return 4.0 * largest + 18.0 * row.data["parameters"] / ranks_of(row)


def rule_of_thumb(bytes_per_parameter: float) -> Estimate:
    """16 or 18 bytes a parameter over the GPUs."""
    return lambda row: bytes_per_parameter * row.data["parameters"] / ranks_of(row)


PEERS: dict[str, Estimate] = {
    "verl-wizard": lambda row: float(row.replay().peak.total_bytes),
    "DeepSpeed `estimate_zero3_model_states_mem_needs`": deepspeed_zero3,
    "18 bytes a parameter / GPUs": rule_of_thumb(18),
    "16 bytes a parameter / GPUs": rule_of_thumb(16),
    "`accelerate estimate-memory` (Adam, not sharded)": accelerate_estimate,
}


def errors(estimate: Estimate, of: Iterable[Row]) -> list[float]:
    """Relative errors of one estimate."""
    return [abs(estimate(row) / row.measured_bytes - 1) for row in of]


def peer_table(measured: list[Row]) -> str:
    """Median and worst error of each estimate over full-parameter updates, and of ours over everything."""
    updates = [row for row in measured if row.case.mode == "update" and not row.case.lora_rank]
    lines = ["| estimate | rows | median error | within 10 % | worst |", "|---|---|---|---|---|"]
    for name, estimate in PEERS.items():
        lines.append(_summary(name, errors(estimate, updates)))
    lines.append(_summary("verl-wizard, all rows", errors(PEERS["verl-wizard"], measured)))
    held_out = [row for row in measured if row.held_out]
    lines.append(_summary("verl-wizard, rows added last", errors(PEERS["verl-wizard"], held_out)))
    return "\n".join(lines)


def _summary(name: str, found: list[float]) -> str:
    within = sum(error <= 0.1 for error in found)
    return f"| {name} | {len(found)} | {statistics.median(found):.2%} | {within} | {max(found):.1%} |"


def row_table(measured: list[Row]) -> str:
    """Every measured row: what differs from the base case, measured, predicted, error, where the peak stands."""
    lines = ["| configuration | measured GiB | predicted GiB | error | peak at |", "|---|---|---|---|---|"]
    for row in measured:
        peak = row.replay().peak
        mark = " *" if row.held_out else ""
        name = row.data["key"].replace(",", ", ").replace("|", "/")
        lines.append(
            f"| {name}{mark} | {row.measured_bytes / GIB:.3f} | {peak.total_bytes / GIB:.3f} | "
            f"{row.error:+.2%} | {peak.at} |"
        )
    return "\n".join(lines)


def reserved_table(measured: list[Row]) -> str:
    """Reserved bytes by strategy."""
    lines = ["| strategy | rows | median error | worst |", "|---|---|---|---|"]
    for strategy in ("fsdp2", "fsdp"):
        chosen = [row for row in measured if row.case.strategy == strategy]
        found = [abs(reserved_bytes(row.replay()) / row.data["reserved_bytes"] - 1) for row in chosen]
        lines.append(f"| {strategy} | {len(found)} | {statistics.median(found):.1%} | {max(found):.0%} |")
    return "\n".join(lines)


def time_table(measured: list[Row]) -> str:
    """Forward and backward (with recomputation) seconds of one micro-batch, no collectives: the fake group has none."""
    lines = ["| configuration | forward s | estimate | backward s | estimate |", "|---|---|---|---|---|"]
    ratios: dict[str, list[float]] = {"forward": [], "backward": []}
    for row in measured:
        case, seconds = row.case, row.data["seconds_by_stage"]
        plain = case.mode == "update" and case.loss == "flash" and case.entropy == "none" and not case.offload_policy
        if not plain or case.packed_mask or case.lora_rank or case.activation_offload or case.tokens < 4096:
            continue
        estimate = roofline(row)
        backward = estimate["backward"] + estimate["recomputation"]
        ratios["forward"].append(abs(estimate["forward"] / seconds["fwd"] - 1))
        ratios["backward"].append(abs(backward / seconds["bwd"] - 1))
        lines.append(
            f"| {row.data['key'].replace(',', ', ')} | {seconds['fwd']:.3f} | {estimate['forward']:.3f} | "
            f"{seconds['bwd']:.3f} | {backward:.3f} |"
        )
    middle = ", ".join(f"{name} {statistics.median(found):.0%}" for name, found in ratios.items())
    return "\n".join([*lines, "", f"Median difference: {middle}."])


def roofline(row: Row) -> dict[str, float]:
    """Compute seconds of one micro-batch on an H200; what was measured was one sample as long as the micro-batch."""
    plan = whole_sequence(plan_of(row.case), row.case.tokens * row.case.ulysses)
    step = Exact(row.case.tokens, row.case.micro_batches).applied(plan, update_step(plan, "actor"))
    return compute_seconds(plan, role_shape(plan, "actor"), step, h200(plan))


def whole_sequence(plan: Plan, tokens: int) -> Plan:
    """Return the Plan with one sample of `tokens`."""
    return plan.replace("data.max_prompt_length", 1).replace("data.max_response_length", tokens)


def h200(plan: Plan) -> Chip:
    """The measured GPU's rates."""
    from dataclasses import replace

    return chip_of(replace(plan, machine=replace(plan.machine, gpu_name="NVIDIA H200")))


def main() -> int:
    """Print the tables, or write them into the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the tables into docs/memory.md")
    arguments = parser.parse_args()
    measured = list(rows())
    tables = {
        "peers": peer_table(measured),
        "reserved": reserved_table(measured),
        "time": time_table(measured),
        "rows": row_table(measured),
    }
    if not arguments.update:
        print("\n\n".join(tables.values()))
        return 0
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
    DOCUMENT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
