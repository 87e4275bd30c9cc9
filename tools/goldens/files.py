"""The files of a model's folder: writes all of them, and reads the model back.

Owns how weights, config and tensors are stored. Does not compute what it stores, and does not know
where the folder lies.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from .definition import Definition
from .distance import is_unrounded
from .models import Recipe, build_model, exact_in_half_formats


def to_older_config_keys(config: dict) -> dict:
    """The rope and dtype keys that were written before transformers 5."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    return config


def write_model(recipe: Recipe, folder: Path) -> None:
    model = build_model(recipe).to(recipe.stored_as)
    model.save_pretrained(
        folder,
        max_shard_size=recipe.max_shard_size,
        save_original_format=not recipe.fused_experts,
    )
    (folder / "generation_config.json").unlink()
    if recipe.older_config_keys:
        path = folder / "config.json"
        config = to_older_config_keys(json.loads(path.read_text()))
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def load_model(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Reads back what was written, so that the goldens belong to the files as they are."""
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **eager)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, exact_in_half_formats(weight.float()).to(dtype)), name
    return model.eval()


def write_goldens(
    folder: Path, tokens: Tensor, f32: dict[str, Tensor], half: dict[str, Tensor]
) -> None:
    tensors = {"tokens": tokens.to(torch.int32)}
    tensors |= {f"f32.{name}": x for name, x in f32.items()}
    tensors |= {f"bf16.{name}": x for name, x in half.items()}
    save_file(tensors, folder / "golden.safetensors")


def write_ops(folder: Path, ops: Definition, stored: dict[str, Tensor]) -> None:
    tensors = {
        f"def.{name}": x if is_unrounded(name) else x.to(torch.bfloat16)
        for name, x in stored.items()
    }
    tensors["def.inv_freq"] = ops.inv_freq
    tensors["def.attention_factor"] = torch.tensor([ops.attention_factor])
    save_file(tensors, folder / "ops.safetensors")
