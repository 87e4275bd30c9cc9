"""Measure a weft-tiny model folder on its held-out sets and write eval.json.

python tools/eval_tiny.py assets/weft-tiny
"""

import argparse
import json
from pathlib import Path

import torch

from tiny import chat, evaluation


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="model folder")
    parser.add_argument("--limit", type=int, help="use the first LIMIT triples of each set only")
    parser.add_argument(
        "--reuse", nargs="+", choices=evaluation.REUSES, default=evaluation.REUSES, help="what documents see"
    )
    parser.add_argument(
        "--generate", type=int, default=0, metavar="N", help="also run greedy generation on the first N triples of each set"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--out", type=Path, help="file for the result (default: eval.json in the model folder)")
    args = parser.parse_args()

    encoder = chat.Encoder(args.folder / "tokenizer.json")
    dtype = getattr(torch, args.dtype)
    result = evaluation.measure_all(args.folder, encoder, args.device, dtype, args.reuse, args.limit)
    if args.generate:
        pool = args.folder / "heldout.jsonl"
        first = evaluation.load_triples(encoder, pool, args.generate)
        first += evaluation.load_triples(encoder, args.folder / "copies.jsonl", args.generate, pool)
        result["generated"] = {
            "triples": len(first),
            "accuracy": evaluation.generate(args.folder, first, args.device, dtype),
        }
    print(evaluation.report(result))
    (args.out or args.folder / "eval.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
