"""A command in a process of its own, ended with all that it started when its time is over.

Compilers start workers that outlive who started them, and hang where no exception reaches. Knows nothing of what runs.
"""

import os
import signal
import subprocess


def run(command: list[str], seconds: float) -> str | None:
    """Runs a command for so long at most. What went wrong, if anything did."""
    child = subprocess.Popen(command, start_new_session=True)
    try:
        status = child.wait(timeout=max(seconds, 0))
    except subprocess.TimeoutExpired:
        return f"out of time after {seconds:.0f} s"
    finally:
        end_group(child)
    return f"ended with status {status}" if status != 0 else None


def end_group(child: subprocess.Popen) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all are gone
    child.wait()
