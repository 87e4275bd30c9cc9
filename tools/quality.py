"""Measures the quality of every form of the bundled model, beside llama.cpp's figures.

    pip install gguf==0.19.0 numpy==2.4.6
    cargo build --release && cargo build --release -p weft-cpu --example eval_tiny
    python tools/quality.py --weft target/release/weft \\
        --eval target/release/examples/eval_tiny --llama ~/llama.cpp/build/bin \\
        --save bench/runs/<date>-<machine>-<commit>/quality.json

Each form is compared with the bundled model in bf16 by `weft compare` on the documents of its
held-out set, and answers the held-out questions. GGUF files are made by llama-quantize; MXFP4, which
it writes only for mixtures of experts, by gguf-py. llama-perplexity measures the same files
(`llama.cpp`), and both programs read the file of distributions that the other wrote
(`weft_on_llama_base`, `llama_on_weft_base`).
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from gguf import GGMLQuantizationType as Type
from gguf.quants import quantize
from golden_gguf import TINY, add_tokenizer, begin, end, gguf_name, read_safetensors

QUANTISED = ["int8", "int4"]
OF_LLAMA_QUANTIZE = [
    "Q8_0", "Q6_K", "Q5_K_M", "Q5_1", "Q5_0", "Q4_K_M", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS",
    "Q3_K_M", "Q2_K", "Q4_0 --pure",
]  # fmt: skip
OF_GGUF_PY = ["BF16", "MXFP4"]
DOCUMENTS = 100
"""Documents of the text: about 12,000 tokens."""


def main() -> None:
    args = arguments()
    args.save.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        measure(args, Path(scratch))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weft", type=Path, required=True, help="the program")
    parser.add_argument("--eval", type=Path, required=True, help="weft-cpu's example eval_tiny")
    parser.add_argument("--llama", type=Path, required=True, help="the folder of its programs")
    parser.add_argument("--save", type=Path, required=True, help="the file")
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--forms", nargs="*", metavar="FORM", help="measure only these")
    parser.add_argument("--answer", nargs="*", metavar="FORM", help="only these answer questions")
    return parser.parse_args()


def measure(args: argparse.Namespace, scratch: Path) -> None:
    """Writes the file after each form; a run that was cut goes on with the next one."""
    text = scratch / "documents.txt"
    lines = (TINY / "heldout.jsonl").read_text().splitlines()
    documents = [json.loads(line)["text"] for line in lines if line.startswith('{"text"')]
    text.write_text("\n\n".join(documents[:DOCUMENTS]) + "\n")
    bases = {name: scratch / f"{name}.base" for name in ("weft", "llama")}
    for kind in OF_GGUF_PY:
        write_gguf(scratch / f"{kind}.gguf", Type[kind])
    bf16 = scratch / "BF16.gguf"
    run(args.weft, "compare", "weft-tiny", "--text", text, "--save-base", bases["weft"])
    perplexity = args.llama / "llama-perplexity"
    run(perplexity, "-m", bf16, "-f", text, "--kl-divergence-base", bases["llama"], "-c", "512")

    forms: list[tuple[str, list]] = [("bf16", ["weft-tiny"])]
    forms += [(form, ["weft-tiny", "--quantize-b", form]) for form in QUANTISED]
    for kind in [*OF_GGUF_PY, *OF_LLAMA_QUANTIZE]:
        forms.append((kind, [scratch / f"{kind}.gguf"]))
    rows = json.loads(args.save.read_text())["rows"] if args.save.exists() else []
    version = re.search(r"version: (.*)", run(perplexity, "--version"))[1]
    done = {row["form"] for row in rows}
    for form, words in forms:
        if form in done or args.forms and form not in args.forms:
            continue
        if form in OF_LLAMA_QUANTIZE:
            kind, *pure = form.split()  # --pure quantises the embedding as the other matrices
            run(args.llama / "llama-quantize", *pure, bf16, words[0], kind)
        result = json.loads(
            run(args.weft, "compare", "weft-tiny", *words, "--text", text, "--output", "json", "-q")
        )
        row = {"form": form, "weight_bytes": result["model"]["b"]["weight_bytes"]}
        row |= result["result"]
        if args.answer is None or form in args.answer:
            row["accuracy"] = accuracy(args, form, words[0])
        if form in OF_GGUF_PY or form in OF_LLAMA_QUANTIZE:
            against = [args.weft, "compare", "--base", bases["llama"], words[0]]
            row["weft_on_llama_base"] = json.loads(run(*against, "--output", "json", "-q"))["result"]
            for name, base in bases.items():
                with_base = ["--kl-divergence-base", base, "--kl-divergence", "-c", "512"]
                key = "llama.cpp" if name == "llama" else "llama_on_weft_base"
                row[key] = of_llama(perplexity, "-m", words[0], *with_base)
        rows.append(row)
        report = {
            "command": ["python", "tools/quality.py", *(w.rpartition("/")[2] for w in sys.argv[1:])],
            "commit": result["commit"],
            "debug_build": result["debug_build"],
            "date": result["date"],
            "machine": result["machine"],
            "model": "weft-tiny",
            "text": f"the first {DOCUMENTS} documents of heldout.jsonl, a blank line between them",
            "text_tokens": result["text_tokens"],
            "window_tokens": result["window_tokens"],
            "questions": args.questions,
            "llama.cpp": version,
            "rows": rows,
        }
        args.save.write_text(json.dumps(report, indent=1) + "\n")
        print(json.dumps(row), file=sys.stderr, flush=True)


def write_gguf(path: Path, kind: Type) -> None:
    """The bundled model as llama.cpp's converter writes it, with matrices of one type."""
    config = json.loads((TINY / "config.json").read_text())
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    ids = {added["content"]: added["id"] for added in tokenizer["added_tokens"]}
    writer = begin(path, "qwen3", config)
    writer.add_string("general.name", "weft-tiny")
    add_tokenizer(writer, tokenizer, config["vocab_size"], "qwen2")
    writer.add_eos_token_id(ids["<|im_end|>"])
    writer.add_bos_token_id(ids["<|endoftext|>"])
    writer.add_pad_token_id(ids["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((TINY / "chat_template.jinja").read_text())
    for name, values in read_safetensors(TINY).items():
        plain = values.ndim == 1
        rows = values if plain else quantize(values, kind)
        writer.add_tensor(gguf_name(name), rows, raw_dtype=Type.F32 if plain else kind)
    end(writer)


def accuracy(args: argparse.Namespace, form: str, model: str | Path) -> float:
    """The share of the held-out questions that are answered right."""
    words = ["--quantize", form] if form in QUANTISED else []
    words += ["--model", model] if isinstance(model, Path) else []
    return json.loads(run(args.eval, args.questions, *words))["accuracy"]


def of_llama(*command: object) -> dict:
    """The figures that llama-perplexity prints. Its log may end early, so it is asked again."""
    patterns = {
        "kl_mean": r"Mean +KLD: +(\S+)", "kl_error": r"Mean +KLD: +\S+ ± +(\S+)",
        "kl_median": r"Median +KLD: +(\S+)", "kl_p99": r"99\.0% +KLD: +(\S+)",
        "kl_max": r"Maximum KLD: +(\S+)", "same_top": r"Same top p: +(\S+)",
        "perplexity_a": r"Mean PPL\(base\) +: +(\S+)", "perplexity_b": r"Mean PPL\(Q\) +: +(\S+)",
    }  # fmt: skip
    for _ in range(10):
        output = run(*command)
        found = {name: re.search(pattern, output) for name, pattern in patterns.items()}
        if all(found.values()):
            figures = {name: float(match[1]) for name, match in found.items() if match}
            return figures | {"same_top": round(figures["same_top"] / 100, 5)}
    raise SystemExit(f"{command}: no figures in\n{output}")


def run(*command: object) -> str:
    """What a program prints; all of it, if it is one of llama.cpp's."""
    words = [str(word) for word in command]
    is_llama = "llama" in Path(words[0]).name
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout + result.stderr if is_llama else result.stdout


if __name__ == "__main__":
    main()
