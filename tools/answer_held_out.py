"""Asks a server the bundled model's held-out questions, and counts right answers.

    python3 tools/answer_held_out.py --weft target/release/weft --serve "--device cuda --quantize int4" \\
        --machine "one NVIDIA H200" --save bench/runs/<date>-<machine>-<commit>/answers-int4.json

Sampling is greedy, eight clients ask at a time, documents are in the file's order. An answer counts
if its whole text is right and it ended by itself: what weft-cpu's example eval_tiny counts.
"""

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HELD_OUT = Path(__file__).parents[1] / "assets/weft-tiny/heldout.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weft", type=Path, required=True, help="the program")
    parser.add_argument("--serve", default="", help="more words for `weft serve`")
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--machine", required=True, help="where this runs, in words")
    parser.add_argument("--commit", help="of the program, if it does not say it")
    parser.add_argument("--save", type=Path, required=True, help="the file")
    args = parser.parse_args()
    command = [str(args.weft), "serve", "weft-tiny", "--port", "0", *args.serve.split()]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        report = answers(address(server), triples(args.questions))
    finally:
        server.terminate()
        server.wait()
    version = subprocess.run([args.weft, "--version"], capture_output=True, text=True, check=True)
    about = {
        "command": [sys.executable, *sys.argv],
        "commit": args.commit or version.stdout.strip(),
        "machine": args.machine,
        "model": f"weft-tiny {args.serve}",
    }
    args.save.write_text(json.dumps({**about, **report}, indent=1) + "\n")
    print(f"{report['right']} of {report['questions']} right")


def triples(n: int) -> list[dict]:
    """Questions with the texts of their documents."""
    lines = [json.loads(line) for line in HELD_OUT.read_text().splitlines()]
    texts = [line["text"] for line in lines if "text" in line]
    asked = [line for line in lines if "question" in line][:n]
    return [{**one, "documents": [texts[i] for i in one["documents"]]} for one in asked]


def address(server: subprocess.Popen) -> str:
    """What the server prints when it listens, once it answers."""
    for line in server.stdout:
        print(line, end="", file=sys.stderr)
        words = [word for word in line.split() if word.startswith("http://")]
        if words:
            return wait_until_ready(words[0].rstrip("/"))
    raise SystemExit(f"the server ended with status {server.wait()}")


def wait_until_ready(url: str) -> str:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5)
            return url
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"{url} was not ready in time")


def answers(url: str, asked: list[dict]) -> dict:
    start = time.monotonic()
    with ThreadPoolExecutor(8) as clients:
        given = list(clients.map(lambda one: ask(url, one), asked))
    mistakes = [
        [one["question"], one["answer"], text]
        for one, (text, reason) in zip(asked, given)
        if text != one["answer"] or reason != "stop"
    ]
    right = len(asked) - len(mistakes)
    seconds = time.monotonic() - start
    return {"questions": len(asked), "right": right, "accuracy": right / len(asked),
            "seconds": round(seconds, 2), "mistakes": mistakes}  # fmt: skip


def ask(url: str, one: dict) -> tuple[str, str]:
    pieces = [*(f"{text}\n\n" for text in one["documents"]), one["question"]]
    body = {
        "model": "weft-tiny",
        "messages": [
            {"role": "system", "content": one["system"]},
            {"role": "user", "content": [{"type": "text", "text": piece} for piece in pieces]},
        ],
        "temperature": 0,
        "max_tokens": 40,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        choice = json.load(response)["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


if __name__ == "__main__":
    main()
