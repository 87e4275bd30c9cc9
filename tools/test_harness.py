"""Checks of what runs the tests: `python3 -m unittest tools/test_harness.py`."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

TOOLS = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [TOOLS, os.path.join(TOOLS, "emulate")]
import emulate  # noqa: E402
import run_tests  # noqa: E402
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


class Programs(unittest.TestCase):
    """Test programs that run side by side."""

    def test_programs_of_cargo_are_those_that_are_tests(self):
        message = {"reason": "compiler-artifact", "manifest_path": "/w/a/Cargo.toml", "target": {"name": "serve"}}
        messages = [{"reason": "build-finished"}, {**message, "executable": None, "profile": {"test": True}}]
        messages += [{**message, "executable": f"/w/{name}", "profile": {"test": name == "x"}} for name in "xy"]
        found = run_tests.programs(map(json.dumps, messages))
        self.assertEqual(found, [("serve", "/w/x", "/w/a")])

    def test_long_ones_begin_and_those_that_measure_time_are_alone(self):
        found = [(name, "", "") for name in ["llm", "rules", "weft_core", "serve", "bodies", "cli"]]
        beside, alone = run_tests.in_order(found)
        self.assertEqual([name for name, _, _ in beside], ["serve", "weft_core", "llm", "cli"])
        self.assertEqual([name for name, _, _ in alone], ["rules", "bodies"])

    def test_all_run_two_at_once_and_failures_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            # Each of the first two ends when the other has begun.
            meet = "touch {0}; until [ -e {1} ]; do sleep 0.05; done; echo test {0} ... ok"
            scripts = {"a": meet.format("a", "b"), "b": meet.format("b", "a")}
            scripts |= {"c": "echo bad; exit 101", "rules": "printf 'no GPU\\tx\\n' >>\"$WEFT_SKIPPED\""}
            found = [(name, name, folder) for name in scripts]
            for name, script in scripts.items():
                pathlib.Path(folder, f"{name}.sh").write_text(script)
            starter = pathlib.Path(folder, "start")
            starter.write_text('#!/bin/sh\nexec sh "$1.sh"\n')
            starter.chmod(0o755)
            skipped = pathlib.Path(folder, "skipped")
            code = f"import run_tests; exit(run_tests.Runner({str(starter)!r}, {str(skipped)!r}).run_all({found!r}))"
            done = subprocess.run([sys.executable, "-c", code], cwd=TOOLS, capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, skipped.read_text()), (1, "no GPU\tx\n"))
            self.assertIn("test a ... ok", done.stdout)
            self.assertIn("test b ... ok", done.stdout)
            self.assertTrue(done.stdout.endswith("failed: c\n"), done.stdout)


class Steps(unittest.TestCase):
    """What `.ci/run` is made of, in a script with other steps."""

    def script(self, lines):
        """Runs lines as `.ci/run` would; returns the code and the output."""
        with tempfile.TemporaryDirectory() as folder:
            steps = os.path.join(os.path.dirname(TOOLS), ".ci/steps.sh")
            text = f"set -euo pipefail\nlog={folder}/log\nnotes={folder}\nsource {steps}\n{lines}"
            done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=60)
            return done.returncode, done.stdout

    def test_what_runs_beside_is_joined_with_its_code(self):
        code, output = self.script("good() { step echo fine; }\nbeside good\nstep echo first\njoin good")
        self.assertEqual(code, 0)
        self.assertLess(output.index("first"), output.index("fine"))
        code, output = self.script("bad() { step sh -c 'exit 7'; }\nbeside bad\njoin bad\necho after")
        self.assertEqual((code, "after" in output), (7, False))

    def test_a_step_that_fails_ends_what_runs_beside_it_and_what_that_started(self):
        # One of the two does not end when it is asked to.
        children = "sleep 300 & echo $! >&3; (trap '' TERM; sleep 301 & echo $! >&3; wait)"
        with tempfile.NamedTemporaryFile("r") as file:
            lines = f"exec 3>>{file.name}\nlong() {{ {children}; }}\nbeside long\n"
            wait = f"until [[ $(wc -l <{file.name}) == 2 ]]; do sleep 0.05; done\n"
            code, output = self.script(f"grace=5\n{lines}{wait}step false\necho after")
            self.assertEqual((code, "after" in output), (1, False))
            numbers = file.read().split()
        states = subprocess.run(["ps", "-o", "stat=,args=", "-p", ",".join(numbers)], capture_output=True, text=True)
        left = [line for line in states.stdout.splitlines() if not line.startswith("Z")]
        self.assertEqual((len(numbers), left), (2, []))


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


class Emulation(unittest.TestCase):
    """What passed is run again if anything changed that it depends on, and is not run otherwise."""

    FILES = {
        "tools/emulate/harness.cpp": '#include <stdio.h>\n#include "kernels/a.cuh"\n#include "generated/c.cuh"\n',
        "crates/weft-cuda/src/kernels/a.cuh": '#include "kernels/b.cuh"\n',
        "crates/weft-cuda/src/kernels/b.cuh": "int b;\n",
        "crates/weft-cuda/src/kernels/other.cuh": "int other;\n",
        "crates/weft-cuda/examples/emulation.rs": "use weft_core::reference::{Reference};\nuse weft_testing::parity;\n",
        "crates/weft-testing/src/lib.rs": "pub mod parity;\npub mod stub;\n",
        "crates/weft-testing/src/parity.rs": "use crate::exact;\n",
        "crates/weft-testing/src/exact.rs": "use weft_core::kv::Slot;\n",
        "crates/weft-testing/src/stub.rs": "use crate::parity;\n",
        "crates/weft-core/src/lib.rs": "pub mod reference;\n",
        "crates/weft-core/src/reference/mod.rs": "use crate::{plan, rope::Table};\n"
        "#[cfg(test)]\nmod tests {\n    use crate::engine::Engine;\n}\n",
        "crates/weft-core/src/plan.rs": "use crate::dtype::Dtype;\n",
        "crates/weft-core/src/rope.rs": "",
        "crates/weft-core/src/dtype.rs": "",
        "crates/weft-core/src/kv.rs": "",
        "crates/weft-core/src/engine/mod.rs": "use crate::plan::plan;\n",
        "headers/generated/c.cuh": "int c;\n",
    }
    # Crates with their versions and what they depend on.
    LOCKED = [("weft-cuda", "0.2.0", ["half 2.7.0"]), ("half", "1.8.0", []), ("half", "2.7.0", ["libc"])]
    LOCKED += [("libc", "0.2.0", []), ("axum", "0.8.0", ["libc"])]

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name, text in self.FILES.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.lock(self.LOCKED)
        crates = self.root / "crates"
        example = crates / "weft-cuda/examples/emulation.rs"
        places = dict(ROOT=self.root, HERE=self.root / "tools/emulate", CRATES=crates, EXAMPLE=example)
        for name, path in places.items():
            patched = unittest.mock.patch.object(emulate, name, path)
            patched.start()
            self.addCleanup(patched.stop)

    def lock(self, crates):
        packages = (f'[[package]]\nname = "{name}"\nversion = "{version}"\ndependencies = {needs}\n' for name, version, needs in crates)
        (self.root / "Cargo.lock").write_text("".join(packages))

    def hash(self):
        return emulate.hash_of(self.root / "headers", "tiny")

    def test_a_change_of_what_is_emulated_changes_the_hash(self):
        unrelated = {"crates/weft-cuda/src/kernels/other.cuh", "crates/weft-core/src/engine/mod.rs"}
        unrelated |= {"crates/weft-testing/src/stub.rs"}
        for name, text in self.FILES.items():
            before = self.hash()
            (self.root / name).write_text("  // A comment.\n" + text)
            self.assertEqual(self.hash(), before, f"a comment in {name}")
            (self.root / name).write_text("int changed; // so\n" + text)
            check = self.assertEqual if name in unrelated else self.assertNotEqual
            check(self.hash(), before, name)
        before = self.hash()
        (self.root / "headers/matrices").write_bytes(b"1")
        self.assertNotEqual(self.hash(), before)

    def test_only_crates_that_the_emulation_is_built_with_count(self):
        before = self.hash()
        for at, (name, version, needs) in enumerate(self.LOCKED):
            self.lock([*self.LOCKED[:at], (name, version + "1", needs), *self.LOCKED[at + 1 :]])
            # Another version of what is named with its version leaves the emulation without it.
            check = self.assertEqual if (name, version) in {("half", "1.8.0"), ("axum", "0.8.0")} else self.assertNotEqual
            check(self.hash(), before, name)

    def run_models(self, *words, passes=True):
        """Runs two models with stand-ins for the compiler and the cases; how many cases ran, and the exit code."""
        skipped = self.root / "skipped"
        stands_in = dict(
            PASSED=self.root / "passed.txt",
            headers=unittest.mock.Mock(),
            hash_of=lambda _, model: f"hash-of-{model}",
            build=unittest.mock.Mock(),
            check=unittest.mock.Mock(return_value=(passes, "")),
        )
        argv = ["emulate.py", "--models", "tiny", "spare", "--log", os.devnull, *words]
        with (
            unittest.mock.patch.multiple(emulate, **stands_in),
            unittest.mock.patch.object(sys, "argv", argv),
            unittest.mock.patch.dict(os.environ, WEFT_SKIPPED=str(skipped)),
            self.assertRaises(SystemExit) as end,
        ):
            emulate.main()
        return stands_in["check"].call_count, int(end.exception.code), skipped.read_text() if skipped.exists() else ""

    def test_what_passed_is_recorded_and_then_skipped(self):
        n_cases = len(emulate.CASES) + len(emulate.SPARE_CASES)
        self.assertEqual(self.run_models("--record", passes=False), (n_cases, 1, ""))
        self.assertEqual(self.run_models("--changed"), (n_cases, 0, ""), "a failure is not recorded")
        self.assertEqual(self.run_models("--record"), (n_cases, 0, ""))
        self.assertEqual(self.run_models("--changed"), (0, 0, "emulation unchanged\t\n" * 2))
        self.assertEqual(self.run_models()[0], n_cases, "without the flag, everything runs")

    def test_the_files_of_this_tree_are_found(self):
        unittest.mock.patch.stopall()
        found = {str(path.relative_to(emulate.CRATES)) for path in emulate.reference()}
        core = {f"weft-core/src/{name}.rs" for name in ("reference/attend", "rope", "device/step")}
        self.assertLessEqual(core | {"weft-testing/src/parity.rs"}, found)
        self.assertFalse(found & {"weft-core/src/engine/mod.rs", "weft-testing/src/stub.rs"})
        with tempfile.TemporaryDirectory() as folder:
            files = emulate.sources(pathlib.Path(folder))
        self.assertLessEqual({"harness.cpp", "cuda.h", "kernels/ptx.cuh", "kernels/base.cuh"}, set(files))
        # What every device needs, and a crate of the server's.
        crates = emulate.dependencies("weft-cuda")
        self.assertIn('"name": "half"', crates)
        self.assertNotIn('"name": "llguidance"', crates)


if __name__ == "__main__":
    unittest.main()
