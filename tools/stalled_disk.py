"""Measures what a disk that stalls costs other lanes of `weft serve`: the time between their tokens.

    python3 tools/stalled_disk.py --weft target/release/weft --runs 5 \
        --commit "$(git rev-parse HEAD)" --machine "2 vCPUs of an AMD EPYC" --save stalled-disk.json

A library is loaded into the server that holds every read and every sync of files below the cache
folder as long as a flag file exists. Some clients stream long answers. Each server has an interval
of `--seconds` in which the disk works, and one in which it stalls. In both, one more client needs
rows that are only on disk, and another one's new rows are to be filed. A sample is the time between
two tokens of a streaming client. The bar: the 99th percentile with a stalled disk is less than twice
that without, with the same clients. Needs a C compiler and Python's standard library.
"""

import argparse
import http.client
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import threading
import time

from file_cost import document, free_port, post

# Reads and syncs of the cache's files wait as long as the flag exists.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
static void wait_for(int fd) {
    const char *flag = getenv("STALL_FLAG"), *folder = getenv("STALL_FOLDER");
    if (!flag || !folder || access(flag, F_OK)) return;
    char name[64], path[4096];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, path, sizeof path - 1);
    if (n < 0) return;
    path[n] = 0;
    if (strncmp(path, folder, strlen(folder))) return;
    while (!access(flag, F_OK)) usleep(1000);
}
ssize_t pread64(int fd, void *to, size_t n, off64_t at) {
    static ssize_t (*real)(int, void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pread64");
    wait_for(fd);
    return real(fd, to, n, at);
}
int fsync(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fsync");
    wait_for(fd);
    return real(fd);
}
"""


class Server:
    def __init__(self, weft: str, home: str, environment: dict):
        self.port = free_port()
        env = {"HOME": home, "PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", **environment}
        serve = [weft, "serve", "--no-resident", "--port", str(self.port), "--cache-dir", f"{home}/kv", "-q"]
        self.process = subprocess.Popen(serve, env=env)
        for _ in range(600):
            try:
                self.get("/health")
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit("the server never became healthy")

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)

    def get(self, path: str) -> str:
        connection = self.connect()
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status != 200:
            raise OSError(answer.status)
        return answer.read().decode()

    def about(self, n: int) -> dict:
        chunk = post(self.connect(), "/v1/chunks", {"kind": "context", "text": document(n)})["id"]
        parts = [{"type": "chunk", "id": chunk}, {"type": "text", "text": "When was it built?"}]
        return {"messages": [{"role": "user", "content": parts}], "temperature": 0, "max_tokens": 4}

    def ask(self, n: int) -> str:
        """The source of a document's rows."""
        answer = post(self.connect(), "/v1/chat/completions", self.about(n))
        return answer["chunk_report"]["chunks"][-2]["source"]

    def stream(self, times: list, end: threading.Event) -> None:
        """Long answers, one after the other; adds when each token came and the time since the last."""
        n = 0
        while not end.is_set():
            n += 1
            body = {"messages": [{"role": "user", "content": f"Tell me about {id(times)} {n}."}]}
            body |= {"stream": True, "ignore_eos": True, "max_tokens": 2000, "cache_prompt": False}
            connection, last = self.connect(), None
            kind = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body | {"speculate": "off"}), kind)
            for line in connection.getresponse():
                if end.is_set():
                    break
                if line.startswith(b"data: {"):
                    now = time.perf_counter()
                    if last is not None:
                        times.append((now, now - last))
                    last = now
            connection.close()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def percentile(samples: list, share: float) -> float:
    return sorted(samples)[min(len(samples) - 1, int(share * len(samples)))]


def measure(server: Server, run: int, flag: pathlib.Path, args: argparse.Namespace) -> list:
    """For both intervals: whether the disk stalled, the times between tokens, how two others fared."""
    streams, end = [[] for _ in range(args.streams)], threading.Event()
    clients = [threading.Thread(target=server.stream, args=(times, end)) for times in streams]
    for client in clients:
        client.start()
    time.sleep(2)
    intervals = []
    for n in [2 * run, 2 * run + 1]:
        stalls, begun, others = n % 2 == 1, time.perf_counter(), {}
        if stalls:
            flag.touch()
        # Rows on disk, each read once; and a new document, whose rows are filed.
        ask = lambda way, number: others.update({way: (server.ask(number), time.perf_counter() - begun)})
        asking = [
            threading.Thread(target=ask, args=("from_disk", n)),
            threading.Thread(target=ask, args=("new", 1000 + n)),
        ]
        for client in asking:
            client.start()
        time.sleep(args.seconds)
        until = time.perf_counter()
        flag.unlink(missing_ok=True)
        for client in asking:
            client.join()
        times = [gap for stream in streams for at, gap in list(stream) if begun < at <= until]
        intervals.append({"stalls": stalls, "others": others, "times_s": [round(t, 6) for t in times]})
    end.set()
    for client in clients:
        client.join()
    return intervals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", required=True)
    parser.add_argument("--streams", type=int, default=2, help="clients that stream")
    parser.add_argument("--runs", type=int, default=5, help="intervals of each kind")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each interval")
    for name in ["--commit", "--machine", "--save"]:
        parser.add_argument(name, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home, flag = pathlib.Path(folder, "home"), pathlib.Path(folder, "stall")
        source, shim = pathlib.Path(folder, "stall.c"), pathlib.Path(folder, "stall.so")
        source.write_text(SHIM, encoding="utf-8")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True)
        home.mkdir()
        server = Server(args.weft, str(home), {})
        for n in range(2 * args.runs):
            server.ask(n)
        server.stop()
        environment = {"LD_PRELOAD": str(shim), "STALL_FLAG": str(flag), "STALL_FOLDER": f"{home}/kv"}
        intervals = []
        for run in range(args.runs):
            server = Server(args.weft, str(home), environment)
            try:
                intervals += measure(server, run, flag, args)
            finally:
                flag.unlink(missing_ok=True)
                server.stop()
    rows = []
    for stalls in [False, True]:
        times = [t for interval in intervals if interval["stalls"] == stalls for t in interval["times_s"]]
        rows.append({"disk": "stalls" if stalls else "works", "tokens": len(times)})
        for name, share in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)]:
            rows[-1][f"{name}_ms"] = round(percentile(times, share) * 1e3, 3)
        rows[-1]["longest_ms"] = round(max(times) * 1e3, 3)
    ratio = round(rows[1]["p99_ms"] / rows[0]["p99_ms"], 3)
    stalled = [i["others"] for i in intervals if i["stalls"]]
    held = all(others["from_disk"][1] >= args.seconds for others in stalled)
    went_on = all(others["new"][1] < args.seconds for others in stalled)
    result = {
        "command": shlex.join(sys.argv),
        "commit": args.commit,
        "machine": args.machine,
        "model": "bundled",
        "load_average": pathlib.Path("/proc/loadavg").read_text(encoding="utf-8").strip(),
        "rows": rows,
        "p99_ratio": ratio,
        "readers_were_held": held,
        "new_rows_did_not_wait": went_on,
        "intervals": intervals,
    }
    with open(args.save, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
    print(json.dumps({"rows": rows, "p99_ratio": ratio, "readers_were_held": held, "new_rows_did_not_wait": went_on}))
    if not (held and went_on and ratio < 2):
        raise SystemExit("the bar is not met")


if __name__ == "__main__":
    main()
