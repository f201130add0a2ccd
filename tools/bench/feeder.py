"""Stands where torchrun stands in a run, and writes the ranks' events at a given rate, with the ranks' own pen.

A wizard is started with `--python SCRIPT` (`stand_in_interpreter`): everything it asks its target interpreter is asked
of the real one, only `-m torch.distributed.run` comes here. So the wizard starts, follows, judges and ends a run as
always: agent, run folder, event files, heartbeats, log.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from wizard.validation.reporter import Reporter
from wizard.validation.spec import read_spec

TICK_SECONDS = 0.01
LOG_LINE = b"(WorkerDict pid=4711) step 12: reward/mean 0.4187 response_length/mean 511.3 timing/gen 12.81 s\n"

FACTS = {
    "parameters": 7_615_616_512, "fsdp_units": 30, "shards": 8, "master_dtype": "float32", "param_dtype": "bf16",
    "reduce_dtype": "fp32", "buffer_dtype": "float32", "device": "NVIDIA H100 80GB HBM3",
}  # fmt: skip
"""What a rank tells once, and the panel keeps in sight."""


def stand_in_interpreter(
    folder: Path, seconds: float, events_per_second: float, log_bytes_per_second: float = 0.0
) -> Path:
    """Write the interpreter for `--python` and return it; rates are of each rank's events, and of the run's log."""
    script = folder / "python"
    script.write_text(
        "#!/bin/sh\n"
        f'[ "$1 $2" = "-m torch.distributed.run" ] || exec "{sys.executable}" "$@"\n'
        f'exec "{sys.executable}" "{__file__}" {seconds} {events_per_second} {log_bytes_per_second} "$@"\n'
    )
    script.chmod(0o755)
    return script


def what_ranks_tell(rank: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the kinds of events that a rank tells between steps, each with new values: every cell has to be drawn."""
    values = random.Random(rank)
    for number in itertools.count():
        kind = number % 10
        if kind == 0:
            yield "log", {"message": f"micro-batch {number}: {values.random():.6f} of the tokens are padding"}
        elif kind == 5:
            yield "memory", {"phase": "actor_update", "resident_bytes": values.randrange(1 << 30, 1 << 36)}
        elif kind == 7:
            yield "metric", {"loss": values.uniform(1, 12), "gradient_norm": values.uniform(0, 5)}
        elif kind == 8:
            rate, used = values.uniform(1e3, 1e5), values.random()
            yield "metric", {"tokens_per_second": rate, "mfu": used}
        else:
            yield "metric", {"step_seconds": values.uniform(0.1, 2.0), "forward_seconds": values.uniform(0.01, 0.5)}


def feed(spec_file: Path, folder: Path, seconds: float, events_per_second: float, log_bytes_per_second: float) -> None:
    """Go through the spec's steps in `seconds`, on all ranks at these rates."""
    spec = read_spec(spec_file)
    pens = [(Reporter(folder, rank), what_ranks_tell(rank)) for rank in range(spec.world_size)]
    started = time.monotonic()
    told, logged_bytes = 0, 0.0
    for index, step in enumerate(spec.steps):
        begun = time.monotonic()
        for reporter, _ in pens:
            reporter.step = step
            reporter.tell("step_started")
            reporter.metric(**FACTS)
        while (now := time.monotonic()) < started + seconds * (index + 1) / len(spec.steps):
            for _ in range(int((now - started) * events_per_second) - told):
                told += 1
                for reporter, events in pens:
                    kind, data = next(events)
                    reporter.tell(kind, **data)  # type: ignore[arg-type]
            lines = int(((now - started) * log_bytes_per_second - logged_bytes) / len(LOG_LINE))
            sys.stdout.buffer.write(LOG_LINE * lines)
            sys.stdout.buffer.flush()
            logged_bytes += lines * len(LOG_LINE)
            time.sleep(TICK_SECONDS)
        for reporter, _ in pens:
            reporter.tell("step_finished", seconds=time.monotonic() - begun)
    for reporter, _ in pens:
        reporter.step = ""
        reporter.tell("finished")


def main() -> None:
    """Be torchrun: the last two arguments are the spec and the run folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", type=float)
    parser.add_argument("events_per_second", type=float)
    parser.add_argument("log_bytes_per_second", type=float)
    mine, torchruns = parser.parse_known_args()
    spec_file, folder = map(Path, sys.argv[-2:])
    del torchruns
    feed(spec_file, folder, mine.seconds, mine.events_per_second, mine.log_bytes_per_second)


if __name__ == "__main__":
    main()
