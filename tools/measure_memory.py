"""Measure peak memory and time of FSDP updates and log-prob passes on one GPU, as rank 0 of any world.

The fake process group makes every collective a no-op while allocations stay real, so one GPU shows what each rank of
a larger world would allocate. The engine mirrors verl 0.9.1 `workers/engine/fsdp/transformer_impl.py`; losses,
entropy, Ulysses and activation offload are verl's own functions.

    python tools/measure_memory.py --out measurements/h200.json --budget-seconds 900
    python tools/measure_memory.py --dry-run          # list the configurations
    python tools/measure_memory.py --smoke            # tiny shapes on the CPU, to see that every path runs

Needs torch, transformers, peft and verl's `utils` package; flash-attn's Triton cross entropy for `loss=flash`. Rows
already in --out are kept, so a run that is cut off goes on where it stopped.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from measure_cases import Case, cases

MARK = "ROW "


def smoke(case: Case) -> Case:
    """Shrink a case so that it runs on a CPU within a second, every path kept."""
    heads, kv_heads = (8, 2) if case.ulysses <= 2 else (8, 4)
    return replace(
        case, layers=2, hidden=64, heads=heads, kv_heads=kv_heads, head_dim=8, intermediate=128, vocab=512, tokens=64,
        experts=min(case.experts, 4), experts_per_token=min(case.experts_per_token, 2),
        expert_intermediate=min(case.expert_intermediate, 32), loss="v2" if case.loss == "flash" else case.loss,
        entropy={"compiled": "eager", "compiled_chunked": "chunked"}.get(case.entropy, case.entropy), liger=False,
    )  # fmt: skip


def drive(arguments: argparse.Namespace) -> int:
    """Run the cases in a worker process, start it again where it died, and write the rows after each."""
    out = Path(arguments.out)
    document: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"rows": []}
    done = {row["key"] for row in document["rows"]}
    wanted = [smoke(case) if arguments.smoke else case for case in cases()]
    todo = [case for case in dict.fromkeys(wanted) if case.key not in done and arguments.only in case.key]
    deadline = time.monotonic() + arguments.budget_seconds
    while todo and time.monotonic() < deadline:
        command = [sys.executable, __file__, "--worker", *(["--smoke"] if arguments.smoke else [])]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert worker.stdin
        assert worker.stdout
        # Liger patches transformers' classes for the whole process, so each of its cases has one of its own.
        batch = [case for case in todo if not case.liger] or todo[:1]
        todo = [*batch, *(case for case in todo if case not in batch)]
        worker.stdin.write(json.dumps([asdict(case) for case in batch]))
        worker.stdin.close()
        finished = 0
        for line in worker.stdout:
            if not line.startswith(MARK):
                continue
            row = json.loads(line[len(MARK) :])
            if "machine" in row:
                document.update(row["machine"])
                continue
            finished += 1
            document["rows"].append(row)
            out.write_text(json.dumps(document, indent=1))
            print(len(document["rows"]), row["key"], row.get("error") or row["peak_allocated_bytes"], flush=True)
            if time.monotonic() > deadline:
                worker.terminate()
        code = worker.wait()
        todo = todo[finished:]
        if todo and code and time.monotonic() < deadline:
            document["rows"].append({"key": todo[0].key, "case": asdict(todo[0]), "error": f"worker exited {code}"})
            out.write_text(json.dumps(document, indent=1))
            todo = todo[1:]
    failed = sum("error" in row for row in document["rows"])
    print(f"{len(document['rows'])} rows, {failed} failed, {len(todo)} not run", file=sys.stderr)
    return 0


def work(on_cpu: bool) -> int:
    """Measure the cases given on stdin as JSON; one row a line on stdout."""
    import torch
    from measure_cases import from_dict
    from measure_engine import Measurement, machine

    print(MARK + json.dumps({"machine": machine(torch, on_cpu)}), flush=True)
    for values in json.load(sys.stdin):
        case = from_dict(values)
        row: dict[str, Any] = {"key": case.key, "case": asdict(case)}
        start = time.perf_counter()
        try:
            row.update(Measurement(case, on_cpu).run())
        except Exception as error:  # one configuration that cannot run must not end the sweep
            row["error"] = f"{type(error).__name__}: {str(error)[:500]}"
            row["trace"] = traceback.format_exc()[-1500:]
        row["wall_seconds"] = round(time.perf_counter() - start, 2)
        print(MARK + json.dumps(row), flush=True)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return 0


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="measurements/h200.json")
    parser.add_argument("--budget-seconds", type=float, default=900)
    parser.add_argument("--only", default="", help="run only cases whose key holds this text")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        return work(arguments.smoke)
    if arguments.dry_run:
        for case in cases():
            print(case.key)
        return 0
    return drive(arguments)


if __name__ == "__main__":
    sys.exit(main())
