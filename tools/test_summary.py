#!/usr/bin/env python3
"""Says how many tests ran and how many were skipped, and refuses skips that CI does not allow.

    test_summary.py LOG SKIPPED

LOG holds the output of cargo's, Python's and Node's tests; SKIPPED a line `REASON<tab>TEST` for each
skipped test, or `REASON<tab>` for a whole suite. The last line that is printed has the numbers.
"""

import collections
import re
import sys

# A GPU is not everywhere, the tokenizer's file lies outside of the repository, and kernels that
# passed as they are now are not compiled (crates/weft-cuda/tests/compiled) or emulated again
# (tools/emulate/passed.txt).
ALLOWED = {"no GPU", "no Qwen3 tokenizer", "kernels unchanged", "emulation unchanged"}

PASSED = [
    re.compile(r"^test result: ok\. (\d+) passed", re.M),
    re.compile(r"^Ran (\d+) tests? in ", re.M),
    re.compile(r"^(?:ℹ|#) pass (\d+)", re.M),
]


def summary(log, skipped):
    """The last line, and the lines of skips that are not allowed."""
    skips = [line.split("\t") for line in skipped.splitlines()]
    passed = sum(int(n) for pattern in PASSED for n in pattern.findall(log))
    # The harness counts a skipped test as passed; a suite that did not run is in no count.
    ran = passed - sum(1 for _, test in skips if test)
    reasons = collections.Counter(reason for reason, _ in skips)
    listed = ", ".join(f"{reason}: {n}" for reason, n in sorted(reasons.items()))
    last = f"ran {ran}, skipped {len(skips)}" + (f" ({listed})" if listed else "")
    refused = [f"{test or 'a suite'}: {reason}" for reason, test in skips if reason not in ALLOWED]
    return last, refused


def main():
    with open(sys.argv[1], encoding="utf-8") as log, open(sys.argv[2], encoding="utf-8") as skipped:
        last, refused = summary(log.read(), skipped.read())
    for line in refused:
        print(f"must not be skipped: {line}")
    print(last)
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
