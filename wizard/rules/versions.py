"""Packages of the interpreter that trains, and the devices it will see."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from wizard.findings import Severity, Stage
from wizard.rules.case import Case
from wizard.rules.registry import Found, rule, set_key
from wizard.verl.keys import ACTOR, MODEL, ROLLOUT

_WANTED = {
    "transformers": SpecifierSet(">=5.5.3,!=5.6.0,<5.11"),
    "tensordict": SpecifierSet(">=0.8.0,<=0.10.0,!=0.9.0"),
    "ray": SpecifierSet(">=2.41.0"),
    "numpy": SpecifierSet(">=2.0.0"),
}
"""verl 0.9.1's wheel metadata, `Requires-Dist`."""
FSDP2_TORCH = Version("2.4")
ARTICLE_TRANSFORMERS = Version("4.40")


def _version(case: Case, package: str) -> Version | None:
    try:
        return Version(case.facts.versions[package])
    except (KeyError, InvalidVersion):
        return None


def _missing(case: Case, package: str) -> bool:
    return case.facts.versions.get(package) == ""


@rule(
    "torch-version", "torch has fully_shard", Severity.ERROR, Stage.ENVIRONMENT, (f"{ACTOR}.strategy",),
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:454",
)  # fmt: skip
def torch_version(case: Case) -> Iterator[Found]:
    """fsdp2 is torch's fully_shard, which torch has since 2.4: workers assert it."""
    found = _version(case, "torch")
    if found is None or found >= FSDP2_TORCH:
        return
    for role in case.engines:
        if case.strategy(role) == "fsdp2":
            key = case.strategy_key(role)
            yield Found(key, f"torch {found} has no fully_shard; 2.4 or newer does.", (set_key(key, "fsdp"),))


@rule(
    "package-version", "packages are of versions that verl's metadata asks for", Severity.WARNING, Stage.ENVIRONMENT,
    (f"{MODEL}.path",), "verl 0.9.1 dist-info METADATA (Requires-Dist)",
)  # fmt: skip
def package_version(case: Case) -> Iterator[Found]:
    """verl does not compare them while it runs; a mismatch shows as an import or attribute error somewhere."""
    transformers = _version(case, "transformers")
    if transformers is not None and transformers < ARTICLE_TRANSFORMERS:
        text = f"transformers {transformers} is older than 4.40, which every supported verl needs."
        yield Found(f"{MODEL}.path", text, severity=Severity.ERROR)
    elif case.config.schema.minor == (0, 9):
        for package, wanted in _WANTED.items():
            found = _version(case, package)
            if found is not None and not wanted.contains(found.base_version, prereleases=True):
                text = f"{package} {found} is installed, and verl {case.config.version} asks for {package}{wanted}."
                yield Found(f"{MODEL}.path", text)


@rule(
    "rollout-engine-missing", "the inference engine is installed", Severity.ERROR, Stage.WORKERS, (f"{ROLLOUT}.name",),
    "verl 0.9.1 workers/rollout/base.py (_ROLLOUT_REGISTRY)",
)  # fmt: skip
def rollout_engine_missing(case: Case) -> Iterator[Found]:
    """Plain `pip install verl` brings none; `verl[vllm]` and `verl[sglang]` do."""
    key, engine = f"{ROLLOUT}.name", case.get(f"{ROLLOUT}.name")
    if engine in ("vllm", "sglang") and _missing(case, engine):
        other = "sglang" if engine == "vllm" else "vllm"
        fixes = (set_key(key, other),) if case.facts.versions.get(other) else ()
        yield Found(key, f"{engine} is not installed where training runs (pip install 'verl[{engine}]').", fixes)


@rule(
    "transfer-queue-missing", "the v1 trainer has its transfer queue", Severity.ERROR, Stage.TRAINER,
    ("trainer.use_v1",), "verl 0.9.1 trainer/main_ppo.py:137",
)  # fmt: skip
def transfer_queue_missing(case: Case) -> Iterator[Found]:
    """The default trainer imports `transfer_queue`, which plain `pip install verl` does not bring."""
    if case.is_v1 and _missing(case, "TransferQueue"):
        text = "the v1 trainer imports TransferQueue, which is not installed (pip install 'verl[verl-core]')."
        yield Found("trainer.use_v1", text, (set_key("trainer.use_v1", False, "the older trainer"),))


@rule(
    "peft-missing", "LoRA has peft", Severity.ERROR, Stage.WORKERS, (f"{MODEL}.lora_rank",),
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py (_build_lora_module)",
)  # fmt: skip
def peft_missing(case: Case) -> Iterator[Found]:
    """Adapters are peft's; the engine imports it when it builds the model."""
    if case.lora_rank and _missing(case, "peft"):
        text = "peft is not installed where training runs: workers stop."
        yield Found(f"{MODEL}.lora_rank", text, (set_key(f"{MODEL}.lora_rank", 0),))


@rule(
    "visible-devices", "CUDA_VISIBLE_DEVICES shows the GPUs asked for", Severity.ERROR, Stage.TRAINER,
    ("trainer.n_gpus_per_node",), "verl 0.9.1 single_controller/ray/base.py:226-242; verl-project/verl issue 5954",
)  # fmt: skip
def visible_devices(case: Case) -> Iterator[Found]:
    """Ray counts only the devices the variable names, when it starts. A MIG instance is one device of its own, and
    NCCL does not connect two of them."""
    setting = case.facts.visible_devices
    if setting is None:
        return
    key, asked = "trainer.n_gpus_per_node", case.number("trainer.n_gpus_per_node", 1)
    devices = [entry.strip() for entry in setting.split(",") if entry.strip() and entry.strip() != "-1"]
    if any(entry.startswith("MIG-") for entry in devices) and case.world_size > 1:
        text = f"CUDA_VISIBLE_DEVICES={setting} names MIG instances, which NCCL does not connect: one rank at most."
        fix = set_key(key, 1)
        yield Found(key, text, (fix,) if case.number("trainer.nnodes", 1) == 1 else (), stage=Stage.WORKERS)
    elif asked > len(devices):
        text = f"CUDA_VISIBLE_DEVICES={setting} shows {len(devices)} of the {asked} GPUs asked for: verl stops."
        yield Found(key, text, (set_key(key, len(devices)),) if devices else ())
