"""The network for training: Qwen3's forward pass with fused q/k/v and gate/up matrices, and its loss.

Weights are kept in float32 and cast to the compute dtype in use. Rounding follows Hugging Face's Qwen3, so the
exported weights behave as they did in training. It must not know where its rows come from.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from . import chat

# Loss weights of tokens. A copied document has some hundred tokens, an answer five.
WEIGHTS = {chat.PADDING: 0.0, chat.CONTEXT: 0.03, chat.ANSWER: 1.0, chat.QUOTE: 0.3, chat.REWRITE: 0.3}
HIDDEN_SCORE = -1e4  # no share in the softmax, and unlike -inf harmless where a kernel's whole tile is hidden


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; the names are those of config.json."""

    vocab_size: int = 2048
    hidden_size: int = 256
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 64
    intermediate_size: int = 768
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    max_position_embeddings: int = 4096


class Layer(nn.Module):
    """Weights of one layer."""

    def __init__(self, shape):
        super().__init__()
        hidden, heads, kv_heads, dim = (
            shape.hidden_size,
            shape.num_attention_heads,
            shape.num_key_value_heads,
            shape.head_dim,
        )
        self.input_norm = nn.Parameter(torch.ones(hidden))
        self.qkv = matrix((heads + 2 * kv_heads) * dim, hidden)
        self.q_norm = nn.Parameter(torch.ones(dim))
        self.k_norm = nn.Parameter(torch.ones(dim))
        self.o = matrix(hidden, heads * dim)
        self.post_norm = nn.Parameter(torch.ones(hidden))
        self.gate_up = matrix(2 * shape.intermediate_size, hidden)
        self.down = matrix(hidden, shape.intermediate_size)

    def weights(self):
        """The weights in the order in which `layer_forward` takes them."""
        return self.input_norm, self.qkv, self.q_norm, self.k_norm, self.o, self.post_norm, self.gate_up, self.down


def matrix(rows, columns):
    """A weight matrix at its start."""
    return nn.Parameter(torch.randn(rows, columns) * 0.02)


def rms_norm(x, weight, eps):
    """Normalise in float32, round to the compute dtype, then scale."""
    return F.rms_norm(x.float(), (x.shape[-1],), eps=eps).to(x.dtype) * weight.to(x.dtype)


def rotate(x, cos, sin):
    """RoPE with rotate-half pairing; x [rows, heads, tokens, head_dim], cos and sin [tokens, head_dim] in float32."""
    low, high = x.chunk(2, -1)
    return (x * cos + torch.cat((-high, low), -1) * sin).to(x.dtype)


def layer_forward(x, weights, rope, bias, shape):
    """One layer; x [rows, tokens, hidden]. `bias` [rows, 1, tokens, tokens] is added to the scores; None is causal.

    A pure function of tensors, so that all layers share one compiled graph.
    """
    input_norm, qkv, q_norm, k_norm, o, post_norm, gate_up, down = (w.to(x.dtype) for w in weights)
    heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
    n_rows, n_tokens, _ = x.shape
    projected = F.linear(rms_norm(x, input_norm, shape.rms_norm_eps), qkv)
    projected = projected.view(n_rows, n_tokens, heads + 2 * kv_heads, shape.head_dim).transpose(1, 2)
    q, k, v = projected.split((heads, kv_heads, kv_heads), 1)
    q = rotate(rms_norm(q, q_norm, shape.rms_norm_eps), *rope)
    k = rotate(rms_norm(k, k_norm, shape.rms_norm_eps), *rope)
    k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None)
    x = x + F.linear(attended.transpose(1, 2).reshape(n_rows, n_tokens, heads * shape.head_dim), o)
    gate, up = F.linear(rms_norm(x, post_norm, shape.rms_norm_eps), gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, down)


def head_logits(x, norm, embedding, eps):
    """Logits [rows, tokens, vocabulary] in the compute dtype."""
    return F.linear(rms_norm(x, norm, eps), embedding.to(x.dtype))


def head_loss(x, norm, embedding, targets, weights, eps):
    """Weighted mean cross-entropy; targets and weights [rows, tokens]."""
    logits = head_logits(x, norm, embedding, eps).float()
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


class Net(nn.Module):
    """The network. `compile_parts` swaps the layer and the loss for compiled ones; `logits` always runs plainly."""

    def __init__(self, shape, weights=WEIGHTS):
        super().__init__()
        self.shape = shape
        self.embedding = matrix(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden_size))
        cos, sin = rope_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.register_buffer("weights", torch.tensor([weights[role] for role in sorted(weights)]), persistent=False)
        self.layer_function, self.loss_function = layer_forward, head_loss

    def compile_parts(self):
        """Compile the layer and the loss, once per shape of the rows."""
        self.layer_function = torch.compile(layer_forward, dynamic=False)
        self.loss_function = torch.compile(head_loss, dynamic=False)

    def body(self, ids, bias, dtype, layer_function):
        """The residual stream after the last layer."""
        n_tokens = ids.shape[1]
        rope = self.cos[:n_tokens], self.sin[:n_tokens]
        x = F.embedding(ids, self.embedding).to(dtype)
        for layer in self.layers:
            x = layer_function(x, layer.weights(), rope, bias, self.shape)
        return x

    def logits(self, ids, bias=None, dtype=torch.float32):
        """Logits of every position."""
        x = self.body(ids, bias, dtype, layer_forward)
        return head_logits(x, self.norm, self.embedding, self.shape.rms_norm_eps)

    def loss(self, ids, roles, bias=None, dtype=torch.bfloat16):
        """Loss of predicting each token from those before it, weighed by their roles."""
        x = self.body(ids, bias, dtype, self.layer_function)
        # The last position predicts nothing: its target is any token, with weight 0.
        targets, target_roles = ids.roll(-1, 1), roles.roll(-1, 1)
        target_roles[:, -1] = chat.PADDING
        weights = self.weights[target_roles.long()]
        return self.loss_function(x, self.norm, self.embedding, targets, weights, self.shape.rms_norm_eps)


def rope_tables(shape):
    """cos and sin [positions, head_dim] in float32."""
    frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angles = torch.outer(torch.arange(shape.max_position_embeddings).float(), frequencies)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def reuse_bias(segments, anchored, dtype):
    """Score bias [rows, 1, tokens, tokens] under which a document sees itself only (and the anchor, if `anchored`).

    This is what documents prefilled apart and moved into place amount to: rotated positions are relative, so the
    offset at which a document was prefilled does not matter. All other tokens see everything before them.
    """
    queries, keys = segments[:, :, None], segments[:, None, :]
    visible = (queries < chat.FIRST_DOCUMENT) | (queries == keys)
    if anchored:
        visible = visible | (keys == chat.ANCHOR)
    visible = visible & torch.ones(visible.shape[1:], dtype=torch.bool, device=segments.device).tril()
    return torch.zeros(visible.shape, dtype=dtype, device=segments.device).masked_fill(~visible, HIDDEN_SCORE)[:, None]


def answer_accuracy(logits, ids, roles, role=chat.ANSWER):
    """Number of answers of a role whose tokens are all predicted, and number of answers; rows [rows, tokens]."""
    hit = torch.zeros_like(ids, dtype=torch.bool)
    hit[:, 1:] = logits[:, :-1].argmax(-1) == ids[:, 1:]
    inside = (roles == role).flatten()
    starts = inside & ~inside.roll(1)
    number = starts.cumsum(0)[inside] - 1
    total = int(starts.sum())
    misses = torch.zeros(total, device=ids.device).index_add_(0, number, (~hit.flatten()[inside]).float())
    return int((misses == 0).sum()), total
