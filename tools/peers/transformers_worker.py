"""transformers on the same weights, one way of running it per process: see `ways.py`.

Loads, compiles and records once, then measures at every turn. Decoding begins after a prompt of a
few tokens; only the way `eager` measures prompts, because all ways run them alike.
"""

import argparse
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers import __version__ as transformers_version

from peers import rows, ways, worker
from peers.programs import Tests


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--way", required=True, help="eager, graph, compiled:<mode>")
    parser.add_argument("--tests", type=lambda text: Tests(**json.loads(text)), required=True)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.bfloat16, attn_implementation="sdpa"
    ).to(device).eval()
    program = f"transformers, {label(args.way)}"
    about = {"version": transformers_version, "torch": torch.__version__, "way": label(args.way)}
    with torch.inference_mode():
        prepared = prepare(model, args.way, args.tests)
        worker.serve(about, lambda: [measure(program, args.tests, *one) for one in prepared])


def label(way: str) -> str:
    """The way with torch.compile's mode named."""
    name, _, mode = way.partition(":")
    return {
        "eager": "eager",
        "graph": "static cache in a CUDA graph",
        "compiled": f"torch.compile mode={mode or 'default'} in a CUDA graph",
    }[name]


def prepare(model: PreTrainedModel, way: str, tests: Tests) -> list[tuple]:
    """(kind, batch, tokens of a sample, what makes the call, samples of a turn) for each test."""
    name, _, mode = way.partition(":")
    prepared: list[tuple] = []
    if name == "eager":
        for n in tests.prompts:
            make = functools.partial(ways.prompt, model, n)
            prepared.append(("prefill", 1, n, make, tests.repetitions))
    # Room in a static cache for a turn's steps: a multiple of 64 rows.
    room = 64 * -(-(tests.tokens + 32) // 64)
    for batch in tests.batches:
        match name:
            case "eager":  # begun anew at every turn, because its cache grows
                make = functools.partial(ways.eager, model, batch)
            case "graph":
                make = ways.graph(model, batch, room)
            case "compiled":
                make = ways.compiled(model, batch, room, mode or "default")
            case _:
                raise SystemExit(f"there is no way {way}: eager, graph, compiled:<mode>")
        prepared.append(("decode", batch, batch, make, tests.tokens))
    return prepared


def measure(
    program: str, tests: Tests, kind: str, batch: int, n: int, make: Callable, samples: int
) -> dict:
    call = make()
    for _ in range(2):
        call()
    times = [timed(call) for _ in range(samples)]
    test = rows.test_name(kind, n if kind == "prefill" else tests.tokens, 0)
    return rows.row(program, "bf16", test, batch, 0, n, times)


def timed(run: Callable[[], object]) -> float:
    """The time of a call until its device is done, µs."""
    if not torch.cuda.is_available():
        start = time.perf_counter_ns()
        run()
        return (time.perf_counter_ns() - start) / 1e3
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3


if __name__ == "__main__":
    main()
