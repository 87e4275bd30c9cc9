"""Measures weft beside other programs: same machine, same random weights, in turn, one file.

    python3 tools/peers.py --weft target/release/weft --shape qwen3-0.6b --device cuda \\
        --llama-bench ~/llama.cpp/build/bin/llama-bench --forms bf16 q8_0 q4_0 \\
        --transformers eager graph compiled:default --megakernel ~/qwen_megakernel \\
        --save bench/runs/<date>-<machine>-<commit>/peers.json

    python3 tools/peers.py --weft target/release/weft --shape qwen3-30b-a3b-4l --device cpu \\
        --llama-bench llama-bench --same --forms q4_0 --cores 0,1 -p 512 -n 64 -d 0 \\
        --folder a3b --save bench/runs/<date>-<machine>-<commit>/experts.json

Every round runs each program once. The file holds the command, the commits, the machine, all
samples, and a row for each test of each program. With `--gguf`, weft and llama.cpp read the same
files, and a row's form is the name of its file; with `--same` these files are written here, one for
each form; with `--random-gguf` they are too, without bf16 weights, which may not fit on a disk;
otherwise weft reads bf16. `--cores` pins both programs, with a thread on each core.
`--llama-bench` takes a path to the program and needs numpy (the GGUF files are written here);
`--transformers` takes ways, torch.compile's mode
after a colon, and needs torch and transformers 5; `--megakernel` takes a checkout of
github.com/AlpinDale/qwen_megakernel and needs nvcc, g++ and ninja as well. All are optional.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from peers import turns
from peers.programs import Llama, ProgramError, Tests, Weft, Worker

# Steps are recorded in a CUDA graph, so modes of torch.compile that record their own are left out.
WAYS = ["eager", "graph", "compiled:default", "compiled:max-autotune-no-cudagraphs"]


def main() -> None:
    args = arguments()
    deadline = time.monotonic() + args.seconds
    with tempfile.TemporaryDirectory() as scratch:
        model = args.folder or Path(scratch) / "model"
        if args.random_gguf:
            model.mkdir(parents=True, exist_ok=True)
        elif not args.gguf and not (model / "model.safetensors").exists():
            export = [args.weft, "bench", "export", "--shape", args.shape, "--out", model]
            subprocess.run(export, check=True)
        tests = Tests(args.prompts, args.tokens, args.depths, args.batches, args.repetitions)
        programs = commands(args, model, Path(scratch))
        workers, problems = started(args, model, tests, deadline)
        try:
            by = "tools/peers/random_gguf.py" if args.random_gguf else "`weft bench export`"
            facts = {"name": Path(args.shape).stem, "weights": f"random, seed 1, by {by}"}
            report = turns.run(
                programs + workers, tests, args.rounds, deadline, args.save, facts, problems
            )
        finally:
            for worker in workers:
                worker.close()
    print(table(report))
    raise SystemExit(1 if report["problems"] else 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weft", type=Path, required=True, help="the program")
    parser.add_argument("--save", type=Path, required=True, help="the file")
    parser.add_argument("--shape", default="qwen3-0.6b", help="a name or a config.json")
    parser.add_argument("--folder", type=Path, help="keep the weights here, or find them here")
    parser.add_argument("--device", default="cuda", help="of weft")
    parser.add_argument("--weft-args", nargs="*", default=[], metavar="WORD", help="more, without --")
    parser.add_argument("--llama-bench", type=Path, help="the program")
    parser.add_argument("--llama-commit", help="if llama-bench was built outside a checkout")
    parser.add_argument("--gguf", type=Path, nargs="*", default=[], help="files for both")
    parser.add_argument("--same", action="store_true", help="weft reads llama.cpp's files")
    parser.add_argument(
        "--random-gguf", action="store_true",
        help="write files for both straight in their forms, q8_0 or q4_0; --shape is a config.json",
    )
    parser.add_argument("--cores", help="pin weft and llama.cpp to these, as taskset takes them")
    parser.add_argument("--forms", nargs="*", default=["bf16", "q8_0", "q4_0"], help="of llama.cpp")
    parser.add_argument("--llama-args", nargs="*", metavar="WORD", help="more, without the first -")
    parser.add_argument(
        "--transformers", nargs="*", default=[], choices=WAYS, metavar="WAY", help=", ".join(WAYS)
    )
    parser.add_argument("--megakernel", type=Path, help="a checkout")
    parser.add_argument("--megakernel-commit", help="if the checkout is a copy without its history")
    parser.add_argument("-p", "--prompts", type=int, nargs="*", default=[512, 4096])
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("-d", "--depths", type=int, nargs="*", default=[0, 1024, 8192])
    parser.add_argument("-b", "--batches", type=int, nargs="*", default=[1], help="not llama-bench")
    parser.add_argument("-r", "--repetitions", type=int, default=3, help="in every round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3600, help="begin no round after this time")
    parser.add_argument("--prepare-seconds", type=float, default=300, help="of one worker")
    return parser.parse_args()


def commands(args: argparse.Namespace, model: Path, scratch: Path) -> list:
    on_gpu = args.device == "cuda"
    pin = pinned(args.cores)
    more = flags(args.weft_args) or (["--step-tokens", "4096"] if on_gpu else [])
    files = list(args.gguf)
    if args.same or args.random_gguf:
        files += [gguf_file(args, model, form) for form in args.forms]
    wefts = {
        path.stem: Weft(args.weft, path, args.device, more, scratch, form=path.stem, pin=pin)
        for path in files
    }
    programs: list = [] if wefts else [Weft(args.weft, model, args.device, more, scratch, pin=pin)]
    if not args.llama_bench:
        return programs + list(wefts.values())
    more = ["-" + args.llama_args[0], *args.llama_args[1:]] if args.llama_args else (
        ["-ngl", "99", "-fa", "on"] if on_gpu else ["-ngl", "0"]
    )
    if args.cores:
        # llama.cpp counts the cores of the machine, not those that it may use.
        more = [*more, "-t", str(n_cores(args.cores))]
    for path in files or [gguf_file(args, model, form) for form in args.forms]:
        # Both programs on one file, one after the other.
        programs += [wefts[path.stem]] if path.stem in wefts else []
        programs.append(
            Llama(args.llama_bench, path, path.stem, more, args.llama_commit, pin=pin)
        )
    return programs


def gguf_file(args: argparse.Namespace, model: Path, form: str) -> Path:
    """The model as a GGUF file of one form, written if it is not there."""
    path = model / f"{form}.gguf"
    if path.exists():
        return path
    from peers import gguf, random_gguf  # which need numpy

    if args.random_gguf:
        random_gguf.write(json.loads(Path(args.shape).read_text()), form, path)
    else:
        gguf.write(model, form, path)
    return path


def pinned(cores: str | None) -> list[str]:
    return ["taskset", "-c", cores] if cores else []


def n_cores(cores: str) -> int:
    """Cores of a list like `0,4-7`."""
    ranges = [part.split("-") for part in cores.split(",")]
    return sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges)


def flags(words: list[str]) -> list[str]:
    return ["--" + words[0], *words[1:]] if words else []


def started(
    args: argparse.Namespace, model: Path, tests: Tests, deadline: float
) -> tuple[list[Worker], list[str]]:
    """The workers that are ready, and why others are not."""
    python = [sys.executable, "-m"]
    wanted = [
        (f"transformers {way}",
         [*python, "peers.transformers_worker", "--model", str(model), "--way", way])
        for way in args.transformers
    ]
    if args.megakernel:
        command = [*python, "peers.megakernel_worker", "--checkout", str(args.megakernel)]
        command += ["--commit", args.megakernel_commit] if args.megakernel_commit else []
        wanted.append(("AlpinDale's megakernel", [*command, "--model", str(model)]))
    seconds = min(args.prepare_seconds, deadline - time.monotonic())

    def start(wish: tuple[str, list[str]]) -> Worker | str:
        try:
            return Worker(*wish, tests, seconds)
        except ProgramError as error:
            print(error, file=sys.stderr, flush=True)
            return str(error)

    # They load and compile side by side; nothing is measured before all are ready.
    with ThreadPoolExecutor(max_workers=max(len(wanted), 1)) as pool:
        tried = list(pool.map(start, wanted))
    workers = [one for one in tried if isinstance(one, Worker)]
    return workers, [one for one in tried if isinstance(one, str)]


def table(report: dict) -> str:
    lines = ["", "| program | form | test | lanes | tok/s | p10 – p90 |", "|---|---|---|--:|--:|--:|"]
    for row in report["rows"]:
        speed = row["tokens_per_s"]
        lines.append(
            f"| {row['program']} | {row['form']} | {row['test']} | {row['batch']} "
            f"| {speed['median']:,.1f} | {speed['p10']:,.1f} – {speed['p90']:,.1f} |"
        )
    return "\n".join(lines + [f"- {problem}" for problem in report["problems"]])


if __name__ == "__main__":
    main()
