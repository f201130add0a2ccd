"""What others take to size a model that is a folder here: `python peers.py accelerate|transformers FOLDER`."""

from __future__ import annotations

import argparse
import sys
from types import SimpleNamespace
from unittest.mock import patch


def accelerate_estimate(folder: str) -> object:
    """`accelerate estimate-memory`, its own code; only the question whether the hub has the model is answered here."""
    from accelerate.commands import estimate

    on_hub = SimpleNamespace(library_name="transformers", config={})
    arguments = argparse.Namespace(
        model_name=folder, library_name="transformers", trust_remote_code=False, dtypes=["float32"]
    )
    with patch.object(estimate, "verify_on_hub", lambda *_: on_hub):
        return estimate.gather_data(arguments)


def transformers_count(folder: str) -> object:
    """The least that gives a parameter count: build the model on the meta device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    print({"accelerate": accelerate_estimate, "transformers": transformers_count}[sys.argv[1]](sys.argv[2]))
