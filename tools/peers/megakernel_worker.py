"""AlpinDale's megakernel for Qwen3-0.6B, from a checkout of github.com/AlpinDale/qwen_megakernel.

The checkout stays as it is. Its kernel is compiled for the GPU that is there instead of sm_120a,
it reads the exported weights, and a repetition begins at the depth that is asked for: what the
cache holds there does not change the time. It has room for 2,048 tokens and runs one lane. Building
it takes nvcc, g++ and ninja, and about a minute: torch's headers are large.
"""

import argparse
import importlib
import json
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch

from peers import rows, worker
from peers.programs import Tests


class OneToken:
    """A tokenizer as `Decoder.generate` uses it: every prompt is one token, no text comes back."""

    eos_token_id = None

    def encode(self, _: str, **__: object) -> list[int]:
        return [1]

    def decode(self, _: list[int], **__: object) -> str:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--commit", help="of the checkout, if it is a copy without its history")
    parser.add_argument("--tests", type=lambda text: Tests(**json.loads(text)), required=True)
    args = parser.parse_args()
    major, minor = torch.cuda.get_device_capability()
    architecture = f"sm_{major}{minor}a"
    code = load(args.checkout, architecture)
    with (
        mock.patch("transformers.AutoTokenizer.from_pretrained", return_value=OneToken()),
        mock.patch("transformers.AutoModelForCausalLM.from_pretrained", on_the_gpu()),
    ):
        weights, tokenizer = code.load_weights(str(args.model), verbose=False)
    decoder = code.Decoder(weights, tokenizer)
    room = code.MAX_SEQ_LEN - args.tests.tokens
    depths = [depth for depth in args.tests.depths if depth < room]
    built = args.commit or commit(args.checkout)
    about = {"commit": built, "torch": torch.__version__, "architecture": architecture}
    worker.serve(about, lambda: [measure(decoder, depth, args.tests) for depth in depths])


def on_the_gpu() -> Callable[..., object]:
    """How transformers loads a model, without `device_map`, which needs accelerate."""
    from transformers import AutoModelForCausalLM

    load = AutoModelForCausalLM.from_pretrained
    return lambda name, device_map, **more: load(name, **more).to(device_map)


def commit(checkout: Path) -> str | None:
    """None if the folder is no checkout itself: a copy may lie in another project's."""
    words = ["git", "-C", str(checkout), "rev-parse", "--show-toplevel", "HEAD"]
    said = subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
    return said[1] if len(said) == 2 and Path(said[0]) == checkout.resolve() else None


def load(checkout: Path, architecture: str) -> types.ModuleType:
    """The package's `model`, its kernel built for this GPU. The package itself would build it for
    another when it is imported, so an empty one stands in its place."""
    package = types.ModuleType("qwen_megakernel")
    package.__path__ = [str(checkout / "qwen_megakernel")]
    sys.modules[package.__name__] = package
    build = importlib.import_module("qwen_megakernel.build")
    build.CUDA_FLAGS[:] = [
        f"-arch={architecture}" if flag.startswith("-arch=") else flag for flag in build.CUDA_FLAGS
    ]
    build.get_extension()
    return importlib.import_module("qwen_megakernel.model")


def measure(decoder: object, depth: int, tests: Tests) -> dict:
    def at_depth() -> None:
        decoder._position = depth

    decoder.reset = at_depth
    samples = []
    for repetition in range(tests.repetitions + 1):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        decoder.generate("", max_tokens=tests.tokens)
        torch.cuda.synchronize()
        if repetition > 0:  # the first one warms up
            samples.append((time.perf_counter_ns() - start) / 1e3)
    test = rows.test_name("decode", tests.tokens, depth)
    return rows.row("AlpinDale's megakernel", "bf16", test, 1, depth, tests.tokens, samples)


if __name__ == "__main__":
    main()
