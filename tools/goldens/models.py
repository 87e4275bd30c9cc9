"""The tiny models: their shapes, their random weights, and which branches of RoPE they reach.

A recipe says how its model is stored, but nothing here touches a file, or knows of prompts or of
what the models are run for.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

LOUD_CHANNELS = (3, 30)  # of the residual stream
LOUD_SCALE = 20.0
K_NORM_OUTLIERS = {1: 96.0, 4: 23.5, 7: 51.0}  # weight by channel of the head


@dataclass(frozen=True)
class Recipe:
    """One tiny model: its shape, how its files are written, the seed of its weights."""

    config: PreTrainedConfig
    seed: int
    stored_as: torch.dtype = torch.bfloat16
    older_config_keys: bool = False
    max_shard_size: str = "1MB"
    tied_experts: tuple[int, ...] = ()  # with the same row of the router
    fused_experts: bool = False  # all experts in one tensor, as transformers holds them


RECIPES = {
    "qwen3": Recipe(
        Qwen3Config(
            hidden_size=44, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
            head_dim=10, intermediate_size=53, vocab_size=131, max_position_embeddings=512,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        ),
        seed=1,
    ),
    "qwen3_yarn": Recipe(
        Qwen3Config(
            hidden_size=52, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=1,
            head_dim=14, intermediate_size=61, vocab_size=137, max_position_embeddings=128,
            tie_word_embeddings=False,
            rope_parameters={
                "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        ),
        seed=2,
        stored_as=torch.float16,
    ),
    "qwen2": Recipe(
        Qwen2Config(
            hidden_size=54, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
            intermediate_size=47, vocab_size=127, max_position_embeddings=512,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        ),
        seed=3,
        older_config_keys=True,
        max_shard_size="60KB",
    ),
    "llama3": Recipe(
        LlamaConfig(
            hidden_size=36, num_hidden_layers=2, num_attention_heads=9, num_key_value_heads=3,
            head_dim=10, intermediate_size=57, vocab_size=139, max_position_embeddings=1024,
            tie_word_embeddings=False, rms_norm_eps=1e-5,
            rope_parameters={
                "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 128,
            },
        ),
        seed=4,
        stored_as=torch.float32,
        older_config_keys=True,
    ),
    "qwen3_moe": Recipe(
        Qwen3MoeConfig(
            hidden_size=44, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            head_dim=10, intermediate_size=53, vocab_size=131, max_position_embeddings=512,
            num_experts=5, num_experts_per_tok=2, moe_intermediate_size=19, norm_topk_prob=True,
            decoder_sparse_step=1, mlp_only_layers=[1], tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        ),
        seed=5,
        max_shard_size="60KB",
    ),
    "qwen3_moe_ties": Recipe(
        Qwen3MoeConfig(
            hidden_size=36, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=1,
            head_dim=14, intermediate_size=47, vocab_size=127, max_position_embeddings=512,
            num_experts=7, num_experts_per_tok=3, moe_intermediate_size=23, norm_topk_prob=False,
            decoder_sparse_step=2, tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        ),
        seed=6,
        tied_experts=(1, 4, 6),
        fused_experts=True,
    ),
}


def random_weight(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """A value for the parameter `name`, by the part it plays."""
    normal = torch.randn(shape, generator=generator)
    spread = 0.5 + torch.rand(shape, generator=generator)
    if name.endswith("k_norm.weight"):
        for channel, outlier in K_NORM_OUTLIERS.items():
            spread[channel] = outlier
        return spread
    if name.endswith("q_norm.weight"):
        # RoPE mixes a channel with its partner half a head away: both face the outlier of k.
        half = shape[0] // 2
        for channel, outlier in K_NORM_OUTLIERS.items():
            spread[[channel, (channel + half) % shape[0]]] *= 2.0 / outlier
        return spread
    if name.endswith("norm.weight"):
        spread[list(LOUD_CHANNELS)] *= 0.1
        return 1.4 * spread  # the loud channels shrink the normalised others
    if name.endswith("embed_tokens.weight"):
        normal[:, list(LOUD_CHANNELS)] *= LOUD_SCALE
        return 0.12 * normal
    if name.endswith("bias"):
        return 0.5 * normal
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        return 0.2 * normal
    return 0.15 * normal


def exact_in_half_formats(x: Tensor) -> Tensor:
    """The nearest value that bf16 and f16 both hold: rounding an f16 to bf16 leaves it an f16."""
    return x.to(torch.float16).to(torch.bfloat16).float()


def build_model(recipe: Recipe) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(recipe.seed)
    model = AutoModelForCausalLM.from_config(recipe.config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        parameter.copy_(exact_in_half_formats(random_weight(name, parameter.shape, generator)))
    for layer in model.model.layers if recipe.tied_experts else ():
        if hasattr(layer.mlp, "experts"):
            router, tied = layer.mlp.gate.weight, list(recipe.tied_experts)
            # Of one weight, so that sums in any order are equal to the last bit.
            router[tied] = 0.0
            router[tied, 5] = 1.0
    return model


def check_rope_branches(model: PreTrainedModel) -> None:
    """Scaled RoPE keeps the high frequencies, divides the low ones, blends between: all occur."""
    rope = model.config.rope_parameters
    if rope["rope_type"] == "default":
        return
    head_dim = model.config.head_dim
    unscaled = rope["rope_theta"] ** -(torch.arange(0, head_dim, 2) / head_dim)
    scaling = model.model.rotary_emb.inv_freq / unscaled
    kept = scaling > 0.999
    divided = scaling < 1.001 / rope["factor"]
    assert kept.any() and divided.any() and (~kept & ~divided).any(), scaling
