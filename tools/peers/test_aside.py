"""python3 -m unittest discover -s tools/peers -t tools"""

import sys
import tempfile
import time
import unittest
from pathlib import Path

from peers import aside


class Aside(unittest.TestCase):
    def test_what_ends_in_time_is_told_by_its_status(self) -> None:
        self.assertIsNone(aside.run([sys.executable, "-c", ""], 60))
        self.assertEqual(aside.run([sys.executable, "-c", "raise SystemExit(3)"], 60), "ended with status 3")

    def test_what_does_not_end_is_ended_with_all_it_started(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder) / "pid"
            # A worker that ignores who started it; its number is told in one piece.
            code = f"""
import os, subprocess, time
worker = subprocess.Popen(["sleep", "600"])
open({str(told)!r} + ".part", "w").write(str(worker.pid))
os.rename({str(told)!r} + ".part", {str(told)!r})
time.sleep(600)
"""
            start = time.monotonic()
            self.assertEqual(aside.run([sys.executable, "-c", code], 2), "out of time after 2 s")
            self.assertLess(time.monotonic() - start, 30)
            self.assertTrue(is_gone(int(told.read_text())))


def is_gone(pid: int) -> bool:
    """Whether a process has ended, or does within some seconds; one that nobody waited for yet has."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


if __name__ == "__main__":
    unittest.main()
