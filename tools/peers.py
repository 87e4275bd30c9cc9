"""Times transformers on the weights that `weft bench --shape` runs, for ratios within one run.

    weft bench export --shape qwen3-0.6b --out /tmp/qwen3-0.6b
    weft bench --device cuda --model /tmp/qwen3-0.6b -p 512,4096 -n 32 -d 0 -b 1,2,4 --save weft.json
    python3 tools/peers.py --model /tmp/qwen3-0.6b --save peers
    weft bench compare peers-eager.json weft.json

Writes `<save>-<way>.json` for each way: `eager`; `graph`, a static cache with the step in a CUDA
graph; `compiled`, the same through torch.compile. A file is written and a line printed after each test, so a
run that is cut short leaves what it measured. Compiling takes a minute or more for each batch: the last way
runs in a process of its own, which `--compile-seconds` ends. Needs torch and transformers 5; without a GPU only
`eager` runs.
"""

import argparse
import functools
import os
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers import __version__ as transformers_version

from peers import aside, report, ways

WAYS = ["eager", "graph", "compiled"]


def main() -> None:
    args = arguments()
    unknown = set(args.ways) - set(WAYS)
    if unknown:
        raise SystemExit(f"there is no way {', '.join(sorted(unknown))}: {', '.join(WAYS)}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.bfloat16, attn_implementation="sdpa"
    ).to(device).eval()
    wanted = args.ways if device == "cuda" else ["eager"]
    deadline = time.monotonic() + args.seconds
    for way in wanted:
        if way == "compiled" and not args.aside:
            compile_aside(min(args.compile_seconds, deadline - time.monotonic()))
        else:
            measure(model, way, args, deadline)
    if args.aside:
        # Workers of the compiler would keep the process until its time is over.
        sys.stdout.flush()
        os._exit(0)


def compile_aside(seconds: float) -> None:
    """Runs this script once more for the way that compiles."""
    failed = aside.run([sys.executable, *sys.argv, "--aside", "--ways", "compiled"], seconds)
    if failed:
        print(f"compiled: {failed}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a folder of weft bench export")
    parser.add_argument("--save", required=True, help="how the files' names begin")
    parser.add_argument("--ways", nargs="*", default=WAYS)
    parser.add_argument("--prompts", type=int, nargs="*", default=[512, 4096])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--tokens", type=int, default=32, help="decode steps of a repetition")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3600, help="begin no test after this time")
    parser.add_argument("--compile-seconds", type=float, default=300, help="for all of `compiled`")
    parser.add_argument("--compile-mode", default="default", help="of torch.compile")
    parser.add_argument("--aside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


@torch.inference_mode()
def measure(model: PreTrainedModel, way: str, args: argparse.Namespace, deadline: float) -> None:
    bandwidth = report.read_bandwidth(1 << (30 if model.device.type == "cuda" else 26))
    parameters = sum(p.numel() for p in model.parameters())
    name = torch.cuda.get_device_name() if model.device.type == "cuda" else "CPU"
    how = f"{way} {args.compile_mode}" if way == "compiled" else way
    about = f"transformers {transformers_version}, torch {torch.__version__}, {how} ({name}, bf16)"
    rows: list[dict] = []
    for test in tests(model, way, args):
        if time.monotonic() > deadline:
            print(f"{way}: out of time", flush=True)
            break
        try:
            rows.append(test())
        except Exception as error:  # one way that fails must not cost the others
            print(f"{way}: {type(error).__name__}: {error}"[:2000], flush=True)
            continue
        print(f"{way} {rows[-1]['test']} b{rows[-1]['batch']}: {rows[-1]['tokens_per_s']['median']:.0f} tok/s", flush=True)
        run = report.report(args.model.name, "files", parameters, about, rows, bandwidth)
        report.save(Path(f"{args.save}-{way}.json"), run)


def tests(model: PreTrainedModel, way: str, args: argparse.Namespace) -> list:
    """The tests of a way. A prompt is run as it comes by all of them, so `eager` alone measures it."""
    prompts = [functools.partial(prefill, model, n, args) for n in args.prompts if way == "eager"]
    steps = [functools.partial(decode, model, way, batch, args) for batch in args.batches]
    return prompts + steps


def prefill(model: PreTrainedModel, n: int, args: argparse.Namespace) -> dict:
    run = ways.prompt(model, n)
    run()
    samples = [report.timed(run) for _ in range(args.repetitions)]
    return report.row(f"pp{n}", "prefill", 1, n, samples, weight_bytes(model))


def decode(model: PreTrainedModel, way: str, batch: int, args: argparse.Namespace) -> dict:
    # Room for the steps that are timed, and for those before them.
    rows = 64 * -(-(args.tokens * args.repetitions + 32) // 64)
    match way:
        case "eager":
            run = ways.eager(model, batch)
        case "graph":
            run = ways.graph(model, batch, rows)
        case "compiled":
            run = ways.compiled(model, batch, rows, args.compile_mode)
    for _ in range(2):
        run()
    samples = [report.timed(run) for _ in range(args.tokens * args.repetitions)]
    return report.row(f"tg{args.tokens}", "decode", batch, batch, samples, weight_bytes(model))


def weight_bytes(model: PreTrainedModel) -> int:
    """Weights that a step reads: all but the embedding, where it is not the head too."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


if __name__ == "__main__":
    main()
