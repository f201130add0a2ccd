"""One training step with FSDP2 and nothing around it, under torchrun: `bare_step.py FOLDER TOKENS RUNS OUT`.

The same step as the validator times: packed tokens with positions, autocast, gradient checkpointing, clipped
gradients, AdamW. Rank 0 writes the seconds of each run to OUT, one a line.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.benchmark import Timer
from transformers import AutoConfig, AutoModelForCausalLM


def main(folder: str, tokens: int, runs: int, out: Path) -> None:
    """Build, shard, warm up and time."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    world = int(os.environ["WORLD_SIZE"])
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder)
    with device:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.config.use_cache = False
    model.train()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=True)
    mesh = init_device_mesh(device.type, (world,))
    for module in (model.model.embed_tokens, *model.model.layers, model.lm_head, model):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.999), weight_decay=0.01)

    ids = torch.randint(config.vocab_size, (1, tokens), device=device)
    positions = torch.arange(tokens, device=device)[None]
    targets = ids.roll(-1, dims=1)[0]

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        loss = nn.functional.cross_entropy(logits[0].float(), targets, reduction="sum") / tokens
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor().item()
        optimizer.step()
        optimizer.zero_grad()

    # The validator's clock, which also keeps the garbage collector out.
    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    timer.timeit(1)
    seconds = [timer.timeit(1).mean for _ in range(runs)]
    if dist.get_rank() == 0:
        out.write_text("\n".join(map(str, seconds)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
