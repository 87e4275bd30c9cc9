"""Makes the tiny models of crates/weft-core/tests/golden and records what they compute.

    python tools/golden.py [MODEL …]   # from the repository root; some minutes on one core

Run once; the outputs are committed, so tests need neither Python nor a download. Everything
follows from fixed seeds. Made with Python 3.11, torch 2.15.0 (CPU), transformers 5.22.0,
safetensors 0.8.0, numpy 2.4.6, the mixtures of experts with torch 2.11.0 and transformers 5.23.0;
other versions may move the last bit of a float32 sum.

Per model folder:

config.json, model*.safetensors
    Random weights under Hugging Face's names, every value exact in bf16 and in f16. They are as
    unkind as trained ones: k_norm weights up to 96, a few residual channels 20 times the others.

golden.safetensors: what transformers computes (eager attention). P is `f32` or `bf16`, l is the
first or the last layer, n the number of tokens.
    tokens                 i32 [n]
    P.embed                [n, hidden]
    P.l.norm_qkv.{q,k,v}   projections with bias, before any q/k norm         [n, width]
    P.l.rope_store.q       q after its norm, before RoPE                      [n, width]
    P.l.rope_store.k       k after its norm and RoPE, as cached               [n, width]
    P.l.attend             attention output, before o_proj                    [n, width]
    P.l.proj_add           residual stream after attention                    [n, hidden]
    P.l.norm_gate_up       silu(gate) * up                                    [n, intermediate]
    P.l.down_add           residual stream after the layer                    [n, hidden]
    P.l.norm_route         a sparse layer's experts, ascending, their weights [n, 2 * chosen]
    P.l.expert_down_add    residual stream after a sparse layer               [n, hidden]
    P.logits               always f32                                         [n, vocab]

ops.safetensors: what weft's ops compute in bf16, by `Definition` (definition.py). Each op's inputs
are outputs of earlier ops, so every op can be tested alone, on stored inputs. l is any layer.
    def.embed.x            def.l.norm_qkv.{q,k,v}   def.l.rope_store.{q,k}   def.l.attend.a
    def.l.proj_add.x       def.l.norm_gate_up.h     def.l.down_add.x         def.logits (f32)
    def.l.norm_route.routes (f32)   def.l.expert_gate_up.h   def.l.expert_down_add.x
    def.inv_freq           f32 [head_dim / 2], as transformers computes it
    def.attention_factor   f32 [1], the factor in cos and sin

The run then proves that these files can tell right from wrong: it moves each rounding point in
turn and prints how many elements change (variants.py), and it sums in other orders and checks
that next to nothing changes (sums.py; the prompt is chosen for that).

This file is the command; its parts are in tools/goldens.
"""

import shutil
import sys
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from goldens.definition import Definition, run_plan
from goldens.files import load_model, write_goldens, write_model, write_ops
from goldens.models import RECIPES, Recipe, check_rope_branches
from goldens.output import check_alive, check_errors
from goldens.record import run_transformers
from goldens.sums import check_sums, choose_tokens
from goldens.variants import check_variants, print_variants

GOLDEN = Path(__file__).parent.parent / "crates/weft-core/tests/golden"


def make(name: str, recipe: Recipe) -> dict[tuple[str, str], float]:
    """Writes one folder; returns what `check_variants` found."""
    folder = GOLDEN / name
    shutil.rmtree(folder, ignore_errors=True)
    write_model(recipe, folder)
    model = load_model(folder, torch.float32)
    check_rope_branches(model)
    tokens = choose_tokens(model)

    f32, attention = run_transformers(model, tokens)
    half, _ = run_transformers(load_model(folder, torch.bfloat16), tokens)
    ops = Definition(model)
    stored = run_plan(ops, tokens)
    write_goldens(folder, tokens, f32, half)
    write_ops(folder, ops, stored)

    print(f"\n{name}")
    print(check_alive(f32["logits"], attention))
    print(check_errors(f32["logits"], half["logits"], stored["logits"]))
    print(check_sums(model, tokens, stored))
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:>8} {path.name}")
    return check_variants(model, tokens, stored)


def main() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    disable_progress_bar()
    names = sys.argv[1:] or list(RECIPES)
    print_variants({name: make(name, RECIPES[name]) for name in names}, names == list(RECIPES))


if __name__ == "__main__":
    main()
