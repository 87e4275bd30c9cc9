#!/usr/bin/env python3
"""How many pages many small pieces take on the device, by reuse, with `weft serve` and the bundled
model. Prints one line of JSON for each case.

    page_cost.py --weft target/release/weft --commit COMMIT --machine MACHINE
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request

CASES = [(40, 2), (20, 5), (8, 20)]


class Server:
    def __init__(self, weft):
        self.home = tempfile.TemporaryDirectory()
        command = [weft, "serve", "--no-resident", "--port", "0", "--threads", "1"]
        environment = {"HOME": self.home.name, "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        first = self.process.stderr.readline()
        self.url = "http://" + first.split("http://")[1].split(" ")[0].strip().rstrip("/")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        for _ in range(600):
            with contextlib.suppress(OSError):
                self.call("/health")
                return
            time.sleep(0.1)
        raise RuntimeError("the server never became healthy")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.home.cleanup()

    def call(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)


def measure(weft, reuse, pieces, words):
    with Server(weft) as server:
        texts = [" ".join(f"w{n}x{word}" for word in range(words)) for n in range(pieces)]
        chunks = [server.call("/v1/chunks", {"kind": "context", "text": text}) for text in texts]
        content = [{"type": "chunk", "id": chunk["id"]} for chunk in chunks]
        content.append({"type": "text", "text": "Who?"})
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0}
        body |= {"max_tokens": 1, "reuse": reuse}
        times = []
        for _ in range(6):
            begun = time.monotonic()
            server.call("/v1/chat/completions", body)
            times.append(time.monotonic() - begun)
        device = server.call("/v1/chunks")["tiers"]["device"]
    return {
        "reuse": reuse,
        "pieces": pieces,
        "tokens": device["tokens"],
        "used_bytes": device["used_bytes"],
        "bytes_per_token": round(device["used_bytes"] / device["tokens"]),
        "warm_ms": round(statistics.median(times[1:]) * 1e3, 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weft", default="target/release/weft")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--machine", default="unknown")
    args = parser.parse_args()
    facts = {"command": f"tools/page_cost.py --weft {args.weft}", "commit": args.commit}
    facts |= {"machine": args.machine, "model": "bundled"}
    for pieces, words in CASES:
        for reuse in ("exact", "anchored", "isolated"):
            print(json.dumps(facts | measure(args.weft, reuse, pieces, words)), flush=True)
            facts = {}


if __name__ == "__main__":
    main()
