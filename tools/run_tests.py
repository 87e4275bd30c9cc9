#!/usr/bin/env python3
"""Runs the test programs of the workspace, two at a time.

    run_tests.py [ARGUMENT OF CARGO TEST ...]

`cargo test` runs one program after the other, and the last tests of each leave cores idle. Here two
run side by side, each as cargo would start it (run_test.sh), the longest first. A program's output is
printed when it has ended. All programs run, whatever fails; those that failed are named at the end.
Programs that measure time to the second run alone, after the others.
"""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
AT_ONCE = 2
# By what they take; all others are shorter.
LONGEST = ["compile", "compile_experts", "serve", "bundled", "weft_core", "prompt_hostile", "chunks", "forms", "all", "need"]
ALONE = {"bodies", "rules"}


def programs(messages):
    """The test programs in cargo's messages: name, program, folder of the package."""
    found = []
    for message in map(json.loads, messages):
        if message.get("executable") and message["profile"]["test"]:
            folder = os.path.dirname(message["manifest_path"])
            found.append((message["target"]["name"], message["executable"], folder))
    return found


def in_order(found):
    """What runs side by side, the longest first, and what runs alone."""
    rank = {name: n for n, name in enumerate(LONGEST)}
    beside = [program for program in found if program[0] not in ALONE]
    beside.sort(key=lambda program: rank.get(program[0], len(rank)))
    return beside, [program for program in found if program[0] in ALONE]


class Runner:
    def __init__(self, starter, skipped):
        self.starter, self.skipped = starter, skipped
        self.lock = threading.Lock()
        self.times, self.failed = [], []

    def run(self, program):
        """Runs a program; prints its output and passes the list of its skipped tests on."""
        name, path, folder = program
        start = time.monotonic()
        with tempfile.NamedTemporaryFile("w+") as skipped:
            environment = {**os.environ, "CARGO_MANIFEST_DIR": folder, "WEFT_SKIPPED": skipped.name}
            done = subprocess.run(
                [self.starter, path], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            with self.lock:
                self.times.append((time.monotonic() - start, name))
                if done.returncode:
                    self.failed.append(name)
                if self.skipped:
                    with open(self.skipped, "a", encoding="utf-8") as all_skipped:
                        all_skipped.write(skipped.read())
                print(f"     Running {os.path.basename(folder)}: {name} ({path})", flush=True)
                sys.stdout.buffer.write(done.stdout)
                sys.stdout.buffer.flush()

    def run_all(self, found):
        beside, alone = in_order(found)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self.run, beside))
        for program in alone:
            self.run(program)
        slowest = sorted(self.times, reverse=True)[:8]
        print("slowest: " + ", ".join(f"{name} {seconds:.0f} s" for seconds, name in slowest))
        if self.failed:
            print("failed: " + ", ".join(sorted(self.failed)))
        return 1 if self.failed else 0


def main():
    command = ["cargo", "test", "--tests", "--no-run", "--message-format=json", *sys.argv[1:]]
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        sys.exit(built.returncode)
    runner = Runner(HERE / "run_test.sh", os.environ.get("WEFT_SKIPPED"))
    sys.exit(runner.run_all(programs(built.stdout.splitlines())))


if __name__ == "__main__":
    main()
