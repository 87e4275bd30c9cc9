"""Runs a program on a terminal of 100 columns and plays a user.

usage: user.py PROGRAM ARG...    with a JSON list of steps on stdin: ["expect", TEXT] waits until the
terminal shows TEXT after what was found before, ["send", TEXT] types. Prints all that was shown. The
exit code is the program's, or 99 if something was not shown in time.
"""

import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios
import time

LIMIT_S = 30


def main() -> int:
    steps = json.load(sys.stdin)
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.argv[1], sys.argv[1:])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    shown, found = "", 0

    def read() -> bool:
        nonlocal shown
        if not select.select([terminal], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(terminal, 4096)
        except OSError:
            return False
        shown += data.decode("utf-8", "replace")
        return bool(data)

    code = 0
    for what, text in steps:
        if what == "send":
            os.write(terminal, text.encode())
            continue
        deadline = time.monotonic() + LIMIT_S
        while (at := shown.find(text, found)) < 0:
            if not read() or time.monotonic() > deadline:
                print(f"NOT SHOWN: {text!r}", file=sys.stderr)
                code = 99
                break
        if code:
            os.kill(child, 9)
            break
        found = at + len(text)
    deadline = time.monotonic() + LIMIT_S
    while read():
        if time.monotonic() > deadline:
            print("THE PROGRAM DOES NOT END", file=sys.stderr)
            os.kill(child, 9)
            break
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.stdout.write(shown)
    return code or status & 0x7F


if __name__ == "__main__":
    sys.exit(main())
