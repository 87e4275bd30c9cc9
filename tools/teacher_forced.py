"""Compares weft with transformers on the same weights: logits of given tokens, teacher-forced.

    weft bench export --shape qwen3-0.6b --out /tmp/qwen3-0.6b
    python3 tools/teacher_forced.py --model /tmp/qwen3-0.6b --weft target/release/weft --save out.json

transformers runs the weights in float32, which is taken for the truth, and in bf16 with both of its
usual attentions; weft runs them in bf16, in blocks and token by token. The yardstick: weft's error may
exceed that of neither bf16 run, in the mean and the maximum of the logits' error and in the mean KL
divergence. Exits with 1 where it does. Needs torch, transformers 5 and safetensors.

The exported key norms have outliers of 96, and nothing that meets them: attention is so sharp that
after 28 layers bf16 has nothing to do with float32 any more, and every program looks equally good. In
trained models queries are small where keys are large; the weights are changed to that before they are
run (`tempered`). A run whose bf16 errors are still no smaller than the logits themselves is refused.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers import __version__ as transformers_version

from peers.programs import weft_commit

BLOCK = 64  # tokens of a step of weft, where it is not one
OUTLIER = 8.0  # key-norm weights above this are outliers
MOST_ERROR = 0.3  # of the logits' deviation: beyond it, rounding is all that is measured


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        model = tempered(args.model, Path(folder) / args.model.name)
        result = compare(args, model)
    print(json.dumps(result, indent=1))
    if args.save:
        args.save.write_text(json.dumps(result, indent=1) + "\n")
    raise SystemExit(0 if result["tells"] and result["holds"] else 1)


def tempered(folder: Path, to: Path) -> Path:
    """The same model with queries that are small where keys are large, in a folder of its own. RoPE
    mixes a channel with its partner half a head away, so both face the outlier."""
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith("k_norm.weight")]:
        keys, queries = weights[name], weights[name.replace("k_norm", "q_norm")]
        for channel in (keys > OUTLIER).nonzero().flatten().tolist():
            partner = (channel + len(keys) // 2) % len(keys)
            queries[[channel, partner]] *= 2.0 / keys[channel]
    to.mkdir()
    shutil.copy(folder / "config.json", to)
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return to


def compare(args: argparse.Namespace, folder: Path) -> dict:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = json.loads((folder / "config.json").read_text())
    generator = torch.Generator().manual_seed(args.seed)
    ids = torch.randint(config["vocab_size"], (args.tokens,), generator=generator)
    truth = by_transformers(folder, ids, torch.float32, "eager", device)
    peers = {
        attention: distance(by_transformers(folder, ids, torch.bfloat16, attention, device), truth)
        for attention in ("eager", "sdpa")
    }
    weft = {step: by_weft(args, folder, ids, step, config["vocab_size"]) for step in (BLOCK, 1)}
    ours = {step: distance(logits.to(device), truth) for step, logits in weft.items()}
    return {
        "command": ["python3", *sys.argv],
        "commit": weft_commit(args.weft),
        "model": args.model.name,
        "tokens": args.tokens,
        "seed": args.seed,
        "machine": torch.cuda.get_device_name() if device == "cuda" else platform.processor(),
        "versions": {"torch": torch.__version__, "transformers": transformers_version},
        "logits_deviation": truth.std().item(),
        "weft_same_bits_both_ways": torch.equal(weft[BLOCK], weft[1]),
        "against_float32": {
            **{f"transformers bf16, {attention}": errors for attention, errors in peers.items()},
            **{f"weft, {step} at a time": errors for step, errors in ours.items()},
        },
        "tells": all(b["mean_logit_error"] < MOST_ERROR * truth.std().item() for b in peers.values()),
        "holds": all(is_no_worse(a, b) for a in ours.values() for b in peers.values()),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a folder of weft bench export")
    parser.add_argument("--weft", type=Path, required=True, help="the program")
    parser.add_argument("--weft-device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", type=Path)
    return parser.parse_args()


@torch.inference_mode()
def by_transformers(
    folder: Path, ids: Tensor, dtype: torch.dtype, attention: str, device: str
) -> Tensor:
    """f32 [tokens, vocab]. Float32 is float32: no tensor cores that round to fewer bits."""
    torch.backends.cuda.matmul.allow_tf32 = False
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention)
    rope = getattr(model.config, "rope_parameters", None) or {}
    theta = json.loads((folder / "config.json").read_text())["rope_theta"]
    assert rope.get("rope_theta", theta) == theta, "transformers reads another rope_theta"
    return model.to(device).eval()(input_ids=ids[None].to(device)).logits[0].float()


def by_weft(args: argparse.Namespace, model: Path, ids: Tensor, step: int, vocab: int) -> Tensor:
    """f32 [tokens, vocab]."""
    with tempfile.TemporaryDirectory() as folder:
        tokens, out = Path(folder) / "tokens.json", Path(folder) / "logits"
        tokens.write_text(json.dumps(ids.tolist()))
        words = ["bench", "forced", "--model", model, "--device", args.weft_device]
        files = ["--tokens", tokens, "--out", out, "--step-tokens", str(step)]
        subprocess.run([args.weft.resolve(), *words, *files], check=True)
        logits = torch.from_file(str(out), size=len(ids) * vocab, dtype=torch.float32)
        return logits.clone().reshape(len(ids), vocab)


def distance(logits: Tensor, truth: Tensor) -> dict[str, float]:
    """How far logits are from the true ones; KL from the true distribution to this one."""
    error = (logits - truth).abs()
    log_p, log_q = truth.double().log_softmax(-1), logits.double().log_softmax(-1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    gap = (log_q - log_p).abs()
    return {
        "mean_logit_error": error.mean().item(),
        "max_logit_error": error.max().item(),
        "mean_logprob_error": gap.mean().item(),
        "mean_kl": kl.mean().item(),
        "max_kl": kl.max().item(),
        "same_argmax": (logits.argmax(-1) == truth.argmax(-1)).double().mean().item(),
    }


def is_no_worse(ours: dict[str, float], theirs: dict[str, float]) -> bool:
    return all(ours[name] <= theirs[name] for name in ("mean_logit_error", "max_logit_error", "mean_kl"))


if __name__ == "__main__":
    main()
