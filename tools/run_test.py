#!/usr/bin/env python3
"""Runs one test program of cargo's: ends it if a test hangs, and counts the tests that it skipped.

    run_test.py PROGRAM [ARGUMENT ...]

If no test of the program has ended for WEFT_TEST_LIMIT_S seconds (900 unless set), every test that
still runs has taken at least as long. The program is then killed, and these tests are named: the test
harness prints the name of each test that runs for more than a minute.

Tests that cannot run here write a line `REASON<tab>TEST` to the file WEFT_SKIPPED
(crates/weft-testing/src/skip.rs). It is a file of this program's own unless the caller names one.
"""

import collections
import os
import re
import select
import subprocess
import sys
import tempfile

SLOW = re.compile(rb"^test (.+) has been running for over \d+ seconds", re.M)
ENDED = re.compile(rb"^test (.+) \.\.\. ", re.M)


def run(command, limit):
    """Passes the output on; returns the exit code, and the names of the tests that hang, if any do."""
    if sys.stdout.isatty() and not any(argument.startswith("--color") for argument in command):
        command = [*command, "--color=always"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    pipe = child.stdout.fileno()
    output, waited = b"", 0.0
    while True:
        if select.select([pipe], [], [], 0.2)[0]:
            text = os.read(pipe, 1 << 16)
            if not text:
                return child.wait(), None
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
            output, waited = output + text, 0.0
        elif child.poll() is not None:
            # A process that the tests left behind may hold the pipe open.
            return child.returncode, None
        else:
            waited += 0.2
            if waited >= limit:
                child.kill()
                child.wait()
                return 1, sorted(set(SLOW.findall(output)) - set(ENDED.findall(output)))


def skipped(path, start):
    with open(path, encoding="utf-8") as file:
        file.seek(start)
        return collections.Counter(line.split("\t")[0] for line in file)


def main():
    limit = float(os.environ.get("WEFT_TEST_LIMIT_S", 900))
    with tempfile.NamedTemporaryFile() as own:
        path = os.environ.setdefault("WEFT_SKIPPED", own.name)
        start = os.path.getsize(path) if os.path.exists(path) else 0
        code, hanging = run(sys.argv[1:], limit)
        reasons = skipped(path, start) if os.path.exists(path) else {}
    if reasons:
        listed = ", ".join(f"{reason}: {n}" for reason, n in sorted(reasons.items()))
        print(f"of these, {sum(reasons.values())} were skipped ({listed})\n", flush=True)
    if hanging is not None:
        names = b", ".join(hanging).decode() or "a test"
        print(f"\nkilled: no test has ended for {limit:.0f} s; this hangs: {names}", flush=True)
    # A program that a signal ended has no code of its own.
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
