#!/usr/bin/env python3
"""Times starts of a program from outside: to its first output, and to its end.

Usage: start_times.py RUNS COMMAND...
Prints a JSON object a line: seconds to the first byte on standard output, seconds to the end, the exit code.
The first run is a first start if WEFT_KERNEL_CACHE names an empty folder.
"""

import json
import subprocess
import sys
import time


def one(command: list[str]) -> dict:
    begun = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        first_s = time.monotonic() - begun
        process.stdout.read()
        code = process.wait()
    end_s = time.monotonic() - begun
    return {"first_output_s": round(first_s, 3) if first else None, "end_s": round(end_s, 3), "exit": code}


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    for _ in range(int(sys.argv[1])):
        print(json.dumps(one(sys.argv[2:])), flush=True)


if __name__ == "__main__":
    main()
