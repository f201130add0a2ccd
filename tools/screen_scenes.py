"""The wizard's screens in their main states, the same on every machine: for the README's pictures and the snapshots."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from textual.pilot import Pilot
from textual.widgets import DataTable, Input

from screens.app import WizardApp
from screens.base import StepScreen
from screens.debug import DebugScreen
from screens.steps import STEPS
from screens.validate import ValidateScreen, _predicted
from screens.widgets.validation_panel import ValidationPanel
from wizard.debugging.compare import Observed
from wizard.debugging.ladder import ABOUT, CHECKS, DDP, FSDP, ONE_DEVICE, Rung
from wizard.debugging.session import DebugSession, RungResult, RungStarted
from wizard.diagnosis import diagnose_verdict
from wizard.model.catalog import preset
from wizard.model.errors import ModelError
from wizard.placing import laid_out
from wizard.plan import Fsdp, Plan
from wizard.probe.gpu_report import Gpu, GpuMemory, GpuProcess, GpuReport, Link, Visible, VisibleDevice
from wizard.probe.host import Host
from wizard.probe.machine import parse_machine
from wizard.probe.versions import Row, State
from wizard.starter import fitted_plan
from wizard.validation.events import Event
from wizard.validation.spec import ValidationSpec
from wizard.validation.verdict import Verdict

Act = Callable[[Pilot[Any]], Awaitable[None]]
MODEL = "Qwen/Qwen2.5-7B-Instruct"
GIB = 1 << 30
PYTHON = "/opt/train/bin/python"
ROWS = (
    Row("python", "3.11.9", State.OK, PYTHON),
    Row("torch", "2.8.0+cu128", State.OK, "FSDP, and the validation run"),
    Row("cuda", "12.8", State.OK, "the driver supports 13.0"),
    Row("transformers", "4.56.1", State.OK, "models"),
    Row("verl", "0.9.1", State.OK, "the training itself; validation runs without it"),
    Row("vllm", "0.11.0", State.OK, "the rollout"),
    Row("sglang", "", State.WARN, "not installed; needed for the rollout with sglang", "pip install sglang"),
    Row(
        "flash-attn",
        "2.8.3",
        State.FAIL,
        "ImportError: undefined symbol _ZN3c105ErrorC2E: built for another torch",
        f"{PYTHON} -m pip install --no-build-isolation --force-reinstall --no-deps flash-attn==2.8.3",
    ),
    Row("ray", "2.49.2", State.OK, "verl's workers"),
    Row("hydra-core", "1.3.2", State.OK, "verl's configuration"),
    Row("numpy", "2.2.6", State.OK, "verl's batches"),
    Row("tensordict", "0.10.0", State.OK, "verl's batches"),
    Row("peft", "0.17.1", State.OK, "LoRA"),
)
HOST = Host(1024 * GIB, "MemTotal", 900 * GIB, 96, 0, 512 * GIB, 512 * GIB)
GPUS = GpuReport(
    "ok",
    driver_version="580.65.06",
    cuda_version="13.0",
    gpus=tuple(
        Gpu(
            index,
            f"GPU-{index}",
            "NVIDIA H100 80GB HBM3",
            f"0000:{index:02x}:00.0",
            GpuMemory(85_017_493_504, 85_017_493_504 - (6 * GIB if index == 3 else 0), "nvml"),
            "9.0",
            17 if index == 3 else 0,
            (GpuProcess(4711, "python", 6 * GIB),) if index == 3 else (),
            mig_enabled=False,
        )
        for index in range(8)
    ),
    links=tuple(Link(one, two, "nvlink", "NV18") for one in range(8) for two in range(one + 1, 8)),
    visible=Visible(None, tuple(VisibleDevice(index) for index in range(8))),
)
STEPS_OF_RUN = ("environment", "load", "wrap", "forward", "backward", "optimizer", "benchmark", "parity")
CAUSE = "Could not find any of the transformer layer classes to wrap in the model: ['Qwen2DecoderLayr']"
WRAP_FAILED = Verdict("failed", "wrap", 3, CAUSE, {"exception": "Exception", "message": CAUSE, "frames": []})
SPEC = ValidationSpec(model="", model_config={}, world_size=8, device="cuda", strategy="fsdp2")


class FixedReader:
    """Stands where NVML is read."""

    def __init__(self, gpus: GpuReport) -> None:
        self._gpus = gpus

    def __enter__(self) -> FixedReader:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self) -> GpuReport:
        return self._gpus

    def refresh(self, report: GpuReport) -> GpuReport:
        return report


async def _cold(_: object) -> None:
    """No inspector is started: presets do not need it."""


async def _offline(*_: object, **__: object) -> None:
    raise ModelError(
        "acme/secret-7b: not in the cache, and the hub cannot be reached from here. Give a local folder, choose a "
        "preset, or download it where there is a network: hf download acme/secret-7b"
    )


@contextlib.contextmanager
def fixed_host(rows: tuple[Row, ...] = ROWS, gpus: GpuReport = GPUS) -> Iterator[None]:
    """Give the screens the facts of one imagined node."""
    with (
        patch("wizard.probe.environment.read_rows", lambda *_, **__: iter(rows)),
        patch("wizard.probe.gpus.read_gpus", lambda *_, **__: GPUS),
        patch("screens.gpus.GpuReader", lambda *_, **__: FixedReader(gpus)),
        patch("screens.gpus.read_host", lambda: HOST),
        patch("wizard.model.process.InspectorProcess.warm", _cold),
    ):
        yield


def starter() -> Plan:
    """Return a Plan for the 7B model on the imagined node."""
    machine = parse_machine("8x80GB,cc9.0,nvlink,ram=1TB,cpus=96")
    plan = Plan(machine=machine, architecture=preset(MODEL)).replace("model.id", MODEL)
    return fitted_plan(plan)


def _events(until: str, *, failed: bool = False) -> Iterator[Event]:
    seconds = {"environment": 2.9, "load": 8.4, "wrap": 1.2, "forward": 1.9, "backward": 1.1, "optimizer": 0.3}
    metrics: dict[str, dict[str, Any]] = {
        "environment": {"device": "NVIDIA H100 80GB HBM3"},
        "load": {"parameters": 7_615_616_512},
        "wrap": {
            "fsdp_units": 31,
            "shards": 8,
            "master_dtype": "float32",
            "param_dtype": "bf16",
            "reduce_dtype": "fp32",
            "buffer_dtype": "float32",
        },
        "forward": {"loss": 12.31264},
        "optimizer": {"gradient_norm": 5.21873},
        "benchmark": {
            "forward_seconds": 0.61,
            "forward_backward_seconds": 2.42,
            "step_seconds": 2.51,
            "tokens_per_second": 52_216.0,
            "mfu": 0.301,
        },
    }
    for step in STEPS_OF_RUN:
        for rank in range(SPEC.world_size):
            yield Event("step_started", rank, 0.0, step)
        if step == until:
            for rank in (0, 1, 2) if not failed else ():
                yield Event("step_finished", rank, 0.0, step, {"seconds": 0.9})
            return
        yield Event("metric", 0, 0.0, step, metrics.get(step, {}))
        for size in (2.44, 2.47, 2.53, 2.49) if step == "benchmark" else ():
            yield Event("metric", 0, 0.0, step, {"step_seconds": size})
        if step == "benchmark":
            peak = 58 * GIB
            yield Event("memory", 0, 0.0, step, {"phase": "actor_update", "peak_allocated_bytes": peak})
        for rank in range(SPEC.world_size):
            yield Event("step_finished", rank, 0.0, step, {"seconds": seconds.get(step, 9.7)})


async def _run(pilot: Pilot[Any], until: str, verdict: Verdict | None, sentence: str = "") -> None:
    screen = pilot.app.screen
    assert isinstance(screen, ValidateScreen)
    panel = screen.query_one(ValidationPanel)
    panel.begin(SPEC)
    panel.prediction = _predicted(screen.app.plan, SPEC)
    for event in _events(until, failed=verdict is not None and verdict.outcome == "failed"):
        panel.feed(event)
    panel.say("rank 0: nccl 2.27.5, 8 ranks on one node")
    if verdict is None:
        screen._set_busy(True)
        screen._say(sentence)
    else:
        if verdict.outcome == "failed":
            panel.feed(Event("failure", 3, 0.0, verdict.step, verdict.failure))
        screen._conclude(verdict)
    panel.finish()
    await pilot.pause()


async def _fill(pilot: Pilot[Any], selector: str, text: str) -> None:
    field = pilot.app.screen.query_one(selector)
    field = field if isinstance(field, Input) else field.query_one(Input)
    field.focus()
    await pilot.press("home", "shift+end", *text)


async def _nothing(_: Pilot[Any]) -> None:
    pass


async def _wrong_machine(pilot: Pilot[Any]) -> None:
    await _fill(pilot, "#description", "8x80parsecs")


async def _offline_model(pilot: Pilot[Any]) -> None:
    with patch.object(pilot.app.inspector, "resolve", _offline):  # type: ignore[attr-defined]
        await _fill(pilot, "#model", "acme/secret-7b")
        await pilot.press("enter")
        await pilot.pause()


async def _wrong_number(pilot: Pilot[Any]) -> None:
    await _fill(pilot, "#field-rollout-n", "many")


async def _written(pilot: Pilot[Any]) -> None:
    screen = pilot.app.screen
    screen._conclude("Written to /data/run: run.yaml, run.sh, verl-wizard.yaml. F3 goes on to prove it; run.sh starts "
                     "training.")  # type: ignore[attr-defined]  # fmt: skip


async def _running(pilot: Pilot[Any]) -> None:
    await _run(pilot, "forward", None, "Running 8 ranks on cuda …")


async def _passed(pilot: Pilot[Any]) -> None:
    await _run(pilot, "", Verdict("passed"))


async def _failed(pilot: Pilot[Any]) -> None:
    await _run(pilot, "wrap", WRAP_FAILED)


async def _help(pilot: Pilot[Any]) -> None:
    pilot.app.screen.query_one("#field-actor-reduce_dtype Select").focus()
    await pilot.press("f1")


def _with(**changes: Any) -> Plan:
    plan = starter()
    return dataclasses.replace(plan, **changes)


def _critic() -> Plan:
    plan = starter().replace("algorithm.name", "ppo").replace("rollout.n", 1)
    return plan.replace("placement.groups", laid_out(plan, "critic"))


def _crowded() -> Plan:
    return dataclasses.replace(starter(), machine=parse_machine("2x24GB,cc8.9,ram=64GB"))


async def _wrong_groups(pilot: Pilot[Any]) -> None:
    await _fill(pilot, "#groups", "actor=everywhere")


async def _leaving(pilot: Pilot[Any]) -> None:
    await _running(pilot)
    await pilot.press("ctrl+q")


def _climb(results: tuple[RungResult, ...], then: RungStarted | None, found: Verdict | None) -> Callable[..., Any]:
    async def climb(session: DebugSession) -> AsyncIterator[RungStarted | RungResult]:
        for result in results:
            session.attempt.results.append(result)
            yield result
        if found is not None:
            session.attempt.diagnosis = diagnose_verdict(found, session.plan)
        if then is not None:
            yield then
            await asyncio.Event().wait()

    return climb


def _debug(failed: RungResult | None = None, then: RungStarted | None = None) -> Act:
    """Return what shows the ladder: up to a rung that failed, that runs, or to its end."""
    rungs = (CHECKS, ONE_DEVICE, DDP) if failed or then else tuple(ABOUT)
    passed = tuple(
        RungResult(Rung(name, None), "passed", observed=_seen(number), seconds=9.1 + number) if name != CHECKS
        else RungResult(Rung(name, None), "passed") for number, name in enumerate(rungs)
    )  # fmt: skip

    async def show(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, WizardApp)
        results = (*passed, *([failed] if failed else []))
        with patch.object(DebugSession, "climb", _climb(results, then, WRAP_FAILED if failed else None)):
            screen = DebugScreen(app.plan, lambda _: SPEC)
            app.push_screen(screen)
            while not (screen.is_mounted and len(screen.query_one(DataTable).rows) == len(results)):
                await pilot.pause()
            await pilot.pause()

    return show


def _seen(number: int) -> Observed:
    return Observed({"loss": 12.31264, "gradient_norm": 5.21873}, {}, (17 + number) * GIB, 8.0)


@dataclass(frozen=True)
class Scene:
    """One screen in one state."""

    step_id: str
    plan: Callable[[], Plan] = starter
    act: Act = _nothing
    rows: tuple[Row, ...] = ROWS
    gpus: GpuReport = GPUS

    def app(self, folder: Path, **options: Any) -> WizardApp:
        """Return the application that shows it."""
        return WizardApp(self.plan(), folder / "verl-wizard.yaml", **options)

    async def play(self, pilot: Pilot[Any]) -> None:
        """Bring a started application into the state."""
        app = pilot.app
        assert isinstance(app, WizardApp)
        await pilot.pause()
        app.go(self.step_id)
        while not (isinstance(app.screen, StepScreen) and app.screen.step_id == self.step_id and app.screen.is_mounted):
            await pilot.pause()
        # Not the watcher of the GPUs, which ends with its screen; an empty list would wait for it too.
        asked = [worker for worker in app.workers if worker.group in ("environment", "resolve")]
        if asked:
            await app.workers.wait_for_complete(asked)
        await pilot.pause()
        await self.act(pilot)
        app._judge()
        await pilot.pause()
        for toast in list(app._notifications):
            app._unnotify(toast)
        await pilot.pause()


FSDP_FAILED = RungResult(Rung(FSDP, None), "failed", CAUSE)
WRONG_CLASS = Fsdp(wrap_classes=("Qwen2DecoderLayr",))
SCENES: dict[str, Scene] = {
    **{step.id: Scene(step.id) for step in STEPS},
    "environment_asking": Scene("environment", rows=ROWS[:1]),
    "gpus_empty": Scene("gpus", plan=Plan, gpus=GpuReport("absent")),
    "gpus_error": Scene("gpus", act=_wrong_machine),
    "model_error": Scene("model", act=_offline_model),
    "layer_classes_empty": Scene("layer_classes", plan=Plan),
    "layer_classes_error": Scene("layer_classes", plan=lambda: _with(actor=WRONG_CLASS)),
    "precision_error": Scene("precision", plan=lambda: starter().replace("actor.reduce_dtype", "bf16")),
    "precision_help": Scene("precision", act=_help),
    "offload_policy": Scene("offload", plan=lambda: starter().replace("actor.offload_policy", True)),
    "offload_error": Scene("offload", plan=_crowded),
    "batches_error": Scene("batches", act=_wrong_number),
    "placement_critic": Scene("placement", plan=_critic),
    "placement_error": Scene("placement", act=_wrong_groups),
    "review_error": Scene("review", plan=lambda: starter().replace("actor.reduce_dtype", "bf16")),
    "review_written": Scene("review", act=_written),
    "validate_running": Scene("validate", act=_running),
    "validate_failed": Scene("validate", plan=lambda: _with(actor=WRONG_CLASS), act=_failed),
    "validate_passed": Scene("validate", act=_passed),
    "validate_leaving": Scene("validate", act=_leaving),
    "debug_running": Scene("validate", act=_debug(then=RungStarted(Rung(FSDP, None)))),
    "debug_failed": Scene("validate", plan=lambda: _with(actor=WRONG_CLASS), act=_debug(FSDP_FAILED)),
    "debug_passed": Scene("validate", act=_debug()),
}
"""By name; a step's own name is its filled state."""
