"""Checks of what runs the tests: `python3 -m unittest tools/test_harness.py`."""

import os
import subprocess
import sys
import tempfile
import unittest

TOOLS = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, TOOLS)
import test_summary  # noqa: E402


def run(script, **variables):
    """Runs a shell script as if it were a test program; returns its code and output."""
    environment = {**os.environ, **variables}
    if "WEFT_SKIPPED" not in variables:
        environment.pop("WEFT_SKIPPED", None)
    command = [sys.executable, os.path.join(TOOLS, "run_test.py"), "sh", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout


class Runner(unittest.TestCase):
    def test_output_and_code_pass_through(self):
        self.assertEqual(run("echo test a ... ok"), (0, "test a ... ok\n"))
        self.assertEqual(run("echo bad; exit 101"), (101, "bad\n"))

    def test_a_test_that_hangs_is_killed_and_named(self):
        slow = "echo 'test {} has been running for over 60 seconds'"
        script = f"{slow.format('a')}; {slow.format('b')}; echo 'test a ... ok'; exec sleep 300"
        code, output = run(script, WEFT_TEST_LIMIT_S="1")
        self.assertEqual(code, 1)
        self.assertIn("this hangs: b\n", output)

    def test_a_slow_program_whose_tests_end_is_left_alone(self):
        script = "for n in 1 2 3 4; do sleep 0.7; echo test $n ... ok; done"
        self.assertEqual(run(script, WEFT_TEST_LIMIT_S="2")[0], 0)

    def test_a_process_that_is_left_behind_does_not_hold_the_runner_up(self):
        self.assertEqual(run("sleep 90 2>&- & echo ok"), (0, "ok\n"))

    def test_skipped_tests_are_counted(self):
        script = "printf 'no GPU\\ta\\nno GPU\\tb\\nno mount\\tc\\n' >>\"$WEFT_SKIPPED\""
        self.assertIn("3 were skipped (no GPU: 2, no mount: 1)", run(script)[1])
        with tempfile.NamedTemporaryFile("w+") as file:
            file.write("no GPU\tearlier\n")
            file.flush()
            self.assertIn("3 were skipped", run(script, WEFT_SKIPPED=file.name)[1])
            self.assertEqual(len(file.read().splitlines()), 3, "the lines stay for the caller")


class Summary(unittest.TestCase):
    LOG = """
test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
Ran 3 tests in 0.100s
ℹ tests 2
ℹ pass 2
"""

    def test_skipped_tests_did_not_run(self):
        last, refused = test_summary.summary(self.LOG, "no GPU\ta\nno GPU\tb\n")
        self.assertEqual((last, refused), ("ran 10, skipped 2 (no GPU: 2)", []))
        self.assertEqual(test_summary.summary(self.LOG, "")[0], "ran 12, skipped 0")
        last, refused = test_summary.summary(self.LOG, "kernels unchanged\tsm_80\n")
        self.assertEqual((last, refused), ("ran 11, skipped 1 (kernels unchanged: 1)", []))

    def test_other_skips_are_refused_and_named(self):
        last, refused = test_summary.summary(self.LOG, "no NVRTC\ta\nno clients\t\n")
        self.assertEqual(last, "ran 11, skipped 2 (no NVRTC: 1, no clients: 1)")
        self.assertEqual(refused, ["a: no NVRTC", "a suite: no clients"])


if __name__ == "__main__":
    unittest.main()
