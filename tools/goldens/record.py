"""What transformers computes: hooks on a model, and one forward pass past them.

Knows nothing of weft's definition, nor of where the records go.
"""

from unittest import mock

import torch
from torch import Tensor
from transformers import PreTrainedModel


def rows(x: Tensor) -> Tensor:
    """[1, n, ...] to [n, width]."""
    return x[0].flatten(1).clone()


class Taps:
    """Forward hooks on the modules of a Hugging Face model, which keep what passes by."""

    def __init__(self, model: PreTrainedModel):
        self.taken: dict[str, Tensor] = {}
        self.layers = sorted({0, model.config.num_hidden_layers - 1})
        self._after(model.model.embed_tokens, "embed")
        for index in self.layers:
            layer = model.model.layers[index]
            attention = layer.self_attn
            for part in "qkv":
                self._after(getattr(attention, f"{part}_proj"), f"{index}.norm_qkv.{part}")
            self._after(getattr(attention, "q_norm", attention.q_proj), f"{index}.rope_store.q")
            self._before(attention.o_proj, f"{index}.attend")
            self._before(layer.post_attention_layernorm, f"{index}.proj_add")
            if hasattr(layer.mlp, "experts"):
                self._routes(layer.mlp.gate, f"{index}.norm_route")
                self._after(layer, f"{index}.expert_down_add")
            else:
                self._before(layer.mlp.down_proj, f"{index}.norm_gate_up")
                self._after(layer, f"{index}.down_add")

    def _before(self, module: torch.nn.Module, name: str) -> None:
        def keep(_module, inputs):
            self.taken[name] = rows(inputs[0])

        module.register_forward_pre_hook(keep)

    def _routes(self, module: torch.nn.Module, name: str) -> None:
        def keep(_module, _inputs, output):
            _logits, weights, experts = output
            experts, order = experts.sort(dim=-1)
            weights = weights.float().gather(-1, order)
            self.taken[name] = torch.cat([experts.float(), weights], dim=-1)

        module.register_forward_hook(keep)

    def _after(self, module: torch.nn.Module, name: str) -> None:
        def keep(_module, _inputs, output):
            self.taken[name] = rows(output)

        module.register_forward_hook(keep)


def stable_topk(x: Tensor, k: int, dim: int) -> tuple[Tensor, Tensor]:
    """torch.topk, but of equal values those with the lower index, which torch leaves open."""
    values, indices = x.sort(dim=dim, descending=True, stable=True)
    return values[..., :k], indices[..., :k]


def run_transformers(model: PreTrainedModel, tokens: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Every tap of one forward pass, and the attention probabilities [layers, heads, n, n]."""
    taps = Taps(model)
    with mock.patch("torch.topk", stable_topk):
        output = model(tokens[None], use_cache=True, output_attentions=True)
    for index in taps.layers:
        cached_keys = output.past_key_values.layers[index].keys  # [1, kv_heads, n, head_dim]
        taps.taken[f"{index}.rope_store.k"] = rows(cached_keys.transpose(1, 2))
    taps.taken["logits"] = output.logits[0].float()
    return taps.taken, torch.cat(output.attentions).float()
