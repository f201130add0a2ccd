"""Unit tables against verl's own policies, applied by torch: fully_shard for real, FSDP1 by a recording wrapper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_models import SETTINGS, small_config
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp.wrap import _recursive_wrap
from torch.testing._internal.distributed.fake_pg import FakeStore

from wizard.model.architecture import architecture_of, build_model
from wizard.model.selection import recommended
from wizard.model.units import NoUnits, fsdp_units
from wizard.plan import Fsdp

fsdp_utils = pytest.importorskip("verl.utils.fsdp_utils")

pytestmark = pytest.mark.verl

Units = Counter[tuple[str, int]]
"""How often a unit of this class and number of elements occurs."""

NESTED: dict[str, tuple[str, ...]] = {
    "qwen2": ("Qwen2DecoderLayer", "Qwen2MLP"),
    "qwen3-moe": ("Qwen3MoeDecoderLayer", "Qwen3MoeExperts"),
    "deepseek-v3": ("DeepseekV3MoE", "DeepseekV3MLP"),
    "qwen2.5-vl": ("Qwen2_5_VLTextModel",),
    # Its own `_no_split_modules`: the position embedding inside is wrapped because the model is not tied.
    "llava": ("CLIPVisionEmbeddings", "CLIPEncoderLayer", "LlamaDecoderLayer"),
}
CHOICES: dict[str, tuple[str, ...]] = {
    "qwen2": ("Qwen2MLP",),
    "qwen2-tied": ("Qwen2Attention", "Qwen2RMSNorm"),
    "qwen3-moe": ("Qwen3MoeExperts",),
    "deepseek-v3": ("DeepseekV3MoE", "DeepseekV3Attention"),
    "gpt-oss": ("GptOssExperts",),
    "gpt2": ("GPT2Block", "NoSuchClass"),
    "jamba": ("JambaAttentionDecoderLayer",),
    "gemma3-vision": ("Gemma3DecoderLayer",),
    "llava": ("LlamaDecoderLayer", "CLIPEncoderLayer"),
    "qwen2.5-vl": ("Qwen2_5_VLVisionBlock", "Qwen2_5_VLDecoderLayer"),
}


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    distributed.destroy_process_group()


def predicted(name: str, fsdp: Fsdp) -> Units:
    units: Units = Counter()
    for unit in fsdp_units(architecture_of(small_config(name)), fsdp):
        if unit.parameters or unit.name == "root":
            units[unit.class_name, unit.parameters] += unit.count
    return units


def wrap_config(fsdp: Fsdp) -> dict[str, Any]:
    chosen = {"transformer_layer_cls_to_wrap": list(fsdp.wrap_classes)} if fsdp.wrap_classes else {}
    return {**chosen, "min_num_params": fsdp.min_num_params}


def by_fully_shard(name: str, fsdp: Fsdp, mesh: DeviceMesh) -> Units:
    model = build_model(small_config(name))
    fsdp_utils.apply_fsdp2(model, {"mesh": mesh}, {"wrap_policy": wrap_config(fsdp)})
    units: Units = Counter()
    for module in model.modules():
        if isinstance(module, fsdp_utils.FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            held = sum(parameter._orig_size.numel() for parameter in group.fsdp_params) if group else 0
            if held or module is model:
                # fully_shard gives the module's class a new name.
                units[type(module).__name__.removeprefix("FSDP"), held] += 1
    return units


class Recorder(nn.Module):
    """Stands where FullyShardedDataParallel would, which refuses to be built without an accelerator."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def by_recursive_wrap(name: str, fsdp: Fsdp) -> Units:
    model = build_model(small_config(name))
    class_name = type(model).__name__
    policy = fsdp_utils.get_fsdp_wrap_policy(model, wrap_config(fsdp))
    _recursive_wrap(model, policy, Recorder, set(), set(), only_wrap_children=True)
    units: Units = Counter()
    met: set[nn.Parameter] = set()

    def own(module: nn.Module) -> Iterator[nn.Parameter]:
        yield from module._parameters.values()
        for child in module.children():
            if not isinstance(child, Recorder):
                yield from own(child)

    def held(module: nn.Module) -> int:
        fresh = {parameter for parameter in own(module) if parameter is not None} - met
        met.update(fresh)
        return sum(parameter.numel() for parameter in fresh)

    for module in model.modules():
        if isinstance(module, Recorder):
            units[type(module.module).__name__, held(module.module)] += 1
    units[class_name, held(model)] += 1
    return units


@pytest.mark.parametrize("name", sorted(set(SETTINGS) - {"llava"}))
def test_fsdp2_units_by_the_models_own_list(name: str, mesh: DeviceMesh) -> None:
    assert predicted(name, Fsdp()) == by_fully_shard(name, Fsdp(), mesh)


@pytest.mark.parametrize("name", SETTINGS)
def test_fsdp2_units_are_those_fully_shard_makes(name: str, mesh: DeviceMesh) -> None:
    fsdp = Fsdp(strategy="fsdp2", wrap_classes=CHOICES[name])
    assert predicted(name, fsdp) == by_fully_shard(name, fsdp, mesh)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("chosen", [False, True], ids=["model's own", "chosen"])
def test_fsdp1_units_are_those_torch_wraps(name: str, chosen: bool) -> None:
    fsdp = Fsdp(strategy="fsdp", wrap_classes=CHOICES[name] if chosen else ())
    assert predicted(name, fsdp) == by_recursive_wrap(name, fsdp)


@pytest.mark.parametrize("name", NESTED)
def test_nested_units_are_fsdp1_only(name: str, mesh: DeviceMesh) -> None:
    classes = NESTED[name]
    one = Fsdp(strategy="fsdp", wrap_classes=classes)
    assert predicted(name, one) == by_recursive_wrap(name, one)
    two = Fsdp(strategy="fsdp2", wrap_classes=classes)
    with pytest.raises(RuntimeError, match="Cannot concatenate overlapping meshes"):
        by_fully_shard(name, two, mesh)
    with pytest.raises(NoUnits, match=f"inside {classes[0]}"):
        predicted(name, two)


@pytest.mark.parametrize("name", sorted(set(SETTINGS) - {"qwen2-tied", "gpt2", "gemma3-vision"}))
@pytest.mark.parametrize("smallest", [1, 2_000, 12_000, 40_000, 10_000_000])
def test_fsdp1_size_policy(name: str, smallest: int) -> None:
    fsdp = Fsdp(strategy="fsdp", min_num_params=smallest, wrap_classes=("Ignored",))
    assert predicted(name, fsdp) == by_recursive_wrap(name, fsdp)


def test_a_models_own_list_can_stop_fsdp2(mesh: DeviceMesh) -> None:
    with pytest.raises(RuntimeError, match="Cannot concatenate overlapping meshes"):
        by_fully_shard("llava", Fsdp(), mesh)
    with pytest.raises(NoUnits, match="Leave out CLIPVisionEmbeddings"):
        predicted("llava", Fsdp())
    architecture = architecture_of(small_config("llava"))
    blocks = Fsdp(wrap_classes=recommended(architecture))
    assert blocks.wrap_classes == ("CLIPEncoderLayer", "LlamaDecoderLayer")
    assert predicted("llava", blocks) == by_fully_shard("llava", blocks, mesh)


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
def test_a_wrong_name_stops_verl_and_us(strategy: Any, mesh: DeviceMesh) -> None:
    fsdp = Fsdp(strategy=strategy, wrap_classes=("qwen2decoderlayer",))
    with pytest.raises(Exception, match="Could not find any of the transformer layer classes"):
        fsdp_utils.get_fsdp_wrap_policy(build_model(small_config("qwen2")), wrap_config(fsdp))
    with pytest.raises(NoUnits, match=r"qwen2decoderlayer.*Qwen2DecoderLayer"):
        predicted("qwen2", fsdp)


@pytest.mark.parametrize("names", [None, []])
def test_fsdp2_without_names_stops(names: list[str] | None, mesh: DeviceMesh) -> None:
    model = build_model(small_config("qwen2"))
    model._no_split_modules = names
    with pytest.raises((TypeError, AssertionError)):
        fsdp_utils.apply_fsdp2(model, {"mesh": mesh}, {})


def test_building_takes_no_memory_for_weights() -> None:
    assert {parameter.device for parameter in build_model(small_config("qwen2")).parameters()} == {torch.device("meta")}
