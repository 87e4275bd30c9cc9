"""python3 -m unittest discover -s tools/peers -t tools"""

import importlib.util
import json
import stat
import struct
import sys
import tempfile
import time
import types
import unittest
from pathlib import Path
from unittest import mock

from peers import rows, turns
from peers.programs import Llama, ProgramError, Tests, Weft, Worker

TESTS = Tests(prompts=[8], tokens=4, depths=[0, 16], batches=[1], repetitions=2)

# They print what the programs print, with the fields that are read here, and note their arguments.
WEFT = """
run = {"problems": [], "machine": {"cpu": "a CPU"}, "device": "CPU", "commit": "abc", "weft_version": "1",
       "bandwidth": {"best_gb_per_s": 20.0}, "model": {"dtype": "bf16"},
       "rows": [{"test": "tg4 @ d16", "batch": 1, "depth": 16, "n_tokens": 1, "samples_us": [250.0, 500.0]}]}
open(sys.argv[sys.argv.index("--save") + 1], "w").write(json.dumps(run))
"""
LLAMA = """
print(json.dumps([{"build_commit": "def", "backends": "CPU", "n_prompt": 0, "n_gen": 4, "n_depth": 16,
                   "samples_ns": [4000000, 8000000]}]))
"""
ANSWERS = """
from peers import worker
worker.serve({"version": "7"}, lambda: [{"program": "w", "samples_us": [1.0]}])
"""


class Folder(unittest.TestCase):
    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = Path(held.name)

    def program(self, name: str, code: str) -> Path:
        path = self.folder / name
        noted = self.folder / "calls"
        head = f"import json, sys\nopen({str(noted)!r}, 'a').write('{name} ')\n"
        path.write_text(f"#!{sys.executable}\n{head}{code}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def both(self, weft: str = WEFT, llama: str = LLAMA) -> list:
        return [
            Weft(self.program("weft", weft), self.folder, "cpu", [], self.folder),
            Llama(self.program("llama", llama), self.folder / "q8_0.gguf", "q8_0", []),
        ]

    def run_all(self, programs: list, rounds: int = 2) -> dict:
        save = self.folder / "peers.json"
        deadline = time.monotonic() + 60
        with mock.patch("builtins.print"):
            turns.run(programs, TESTS, rounds, deadline, save, {"name": "tiny"}, [])
        self.assertEqual(list(self.folder.glob("*.part")), [])
        return json.loads(save.read_text())


def command() -> types.ModuleType:
    """`tools/peers.py`. It has the package's name, so it is loaded by its path."""
    path = Path(__file__).parents[1] / "peers.py"
    spec = importlib.util.spec_from_file_location("front", path)
    front = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(front)
    return front


class Turns(Folder):
    def test_a_file_gives_its_name_to_the_rows_of_both(self) -> None:
        weft, llama = self.both()
        weft.form = llama.form = "model-Q4_0"
        report = self.run_all([weft, llama])
        self.assertEqual({row["form"] for row in report["rows"]}, {"model-Q4_0"})
        self.assertEqual([one["form"] for one in report["programs"]], ["model-Q4_0"] * 2)

    def test_ways_that_record_graphs_themselves_are_refused(self) -> None:
        front = command()
        words = ["peers.py", "--weft", "weft", "--save", "s.json", "--transformers", "graph"]
        with mock.patch.object(sys, "argv", [*words, "compiled:default"]):
            self.assertEqual(front.arguments().transformers, ["graph", "compiled:default"])
        for wrong in ("compiled:reduce-overhead", "compiled", "fast"):
            with mock.patch.object(sys, "argv", [*words, wrong]), mock.patch("sys.stderr"):
                self.assertRaises(SystemExit, front.arguments)

    def test_the_megakernel_s_commit_may_be_named(self) -> None:
        front = command()
        words = ["peers.py", "--weft", "weft", "--save", "s.json", "--megakernel", "copy"]
        for more in ([], ["--megakernel-commit", "abc"]):
            with (
                mock.patch.object(sys, "argv", [*words, *more]),
                mock.patch.object(Worker, "__init__", side_effect=ProgramError("none")) as start,
                mock.patch("builtins.print"),
            ):
                front.started(front.arguments(), self.folder, TESTS, time.monotonic() + 60)
            words_of_it = " ".join(start.call_args.args[1])
            self.assertEqual("--commit abc" in words_of_it, bool(more))

    def test_both_read_one_file_and_run_on_the_same_cores(self) -> None:
        front = command()
        (self.folder / "q4_0.gguf").write_text("GGUF")
        save, llama = str(self.folder / "s.json"), str(self.folder / "llama")
        words = ["peers.py", "--weft", "weft", "--device", "cpu", "--save", save, "--same"]
        words += ["--llama-bench", llama, "--forms", "q4_0", "--cores", "0,2-3"]
        with mock.patch.object(sys, "argv", words):
            programs = front.commands(front.arguments(), self.folder, self.folder)
        weft, llama = [program.command(TESTS) for program in programs]
        self.assertEqual(weft[:4], ["taskset", "-c", "0,2-3", "weft"])
        self.assertEqual(llama[:3], ["taskset", "-c", "0,2-3"])
        self.assertEqual(weft[weft.index("--model") + 1], llama[llama.index("-m") + 1])
        self.assertEqual(llama[llama.index("-t") + 1], "3")
        self.assertEqual([program.form for program in programs], ["q4_0", "q4_0"])

    def test_programs_take_turns_and_one_file_holds_all_samples(self) -> None:
        run = self.run_all(self.both(), rounds=3)
        self.assertEqual((self.folder / "calls").read_text(), "weft llama llama weft weft llama ")
        self.assertEqual((run["commit"], run["machine"]["cpu"], run["model"]["name"]), ("abc", "a CPU", "tiny"))
        self.assertTrue(run["command"].startswith("python3 "))
        weft, llama = run["rows"]
        self.assertEqual((weft["program"], weft["form"], weft["test"]), ("weft", "bf16", "tg4 @ d16"))
        self.assertEqual(weft["samples_us"], [250.0, 500.0] * 3)
        self.assertEqual((llama["program"], llama["form"], llama["test"]), ("llama.cpp", "q8_0", "tg4 @ d16"))
        # Four tokens in 4 and 8 ms, the median of both.
        self.assertEqual(llama["tokens_per_s"]["median"], 4 / 6e-3)
        about = {one["name"]: one for one in run["programs"]}
        self.assertEqual(about["llama.cpp"]["commit"], "def")
        self.assertIn(f"-m {self.folder}/q8_0.gguf -p 8 -n 4 -d 0,16 -r 2", about["llama.cpp"]["command"])
        self.assertEqual(about["weft"]["bandwidth_gb_per_s"], [20.0] * 3)

    def test_a_program_that_fails_leaves_the_others(self) -> None:
        run = self.run_all(self.both(llama="sys.exit('no such model')\n"))
        self.assertEqual((self.folder / "calls").read_text(), "weft llama weft ")
        self.assertEqual([row["program"] for row in run["rows"]], ["weft"])
        self.assertIn("no such model", run["problems"][0])

    def test_wrong_logits_are_no_samples(self) -> None:
        run = self.run_all(self.both(weft=WEFT.replace('"problems": []', '"problems": ["NaN"]')))
        self.assertEqual([row["program"] for row in run["rows"]], ["llama.cpp"])
        self.assertIn("NaN", run["problems"][0])


class Workers(Folder):
    def test_a_worker_answers_every_turn(self) -> None:
        worker = Worker("w", [sys.executable, "-c", ANSWERS], TESTS, 60)
        self.addCleanup(worker.close)
        self.assertEqual(worker.about["version"], "7")
        for _ in range(2):
            self.assertEqual(worker.turn(TESTS, 60), [{"program": "w", "samples_us": [1.0]}])

    def test_one_that_is_not_ready_in_time_is_ended_with_all_it_started(self) -> None:
        noted = self.folder / "pid"
        code = f"""
import os, subprocess, time
child = subprocess.Popen(["sleep", "600"])
open({str(noted)!r} + ".part", "w").write(str(child.pid))
os.rename({str(noted)!r} + ".part", {str(noted)!r})
time.sleep(600)
"""
        # On a busy machine it may take a while until it has started anything.
        for seconds in (3, 10, 40):
            with self.assertRaisesRegex(ProgramError, f"out of time after {seconds} s"):
                Worker("w", [sys.executable, "-c", code], TESTS, seconds)
            if noted.exists():
                break
        self.assertTrue(is_gone(int(noted.read_text())))

    def test_one_that_ends_is_reported_by_its_status(self) -> None:
        with self.assertRaisesRegex(ProgramError, "ended with status 3"):
            Worker("w", [sys.executable, "-c", "raise SystemExit(3)"], TESTS, 60)


class Rows(unittest.TestCase):
    def test_ranges_are_those_of_weft(self) -> None:
        samples = [float(i) for i in range(1, 12)]
        self.assertEqual(rows.spread(samples), {"median": 6.0, "p10": 2.0, "p90": 10.0})
        self.assertEqual(rows.rates(rows.spread(samples), 1)["p90"], 5e5)


CONFIG = {
    "model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 4,
    "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 32,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
}  # fmt: skip


class Gguf(Folder):
    def test_random_files_have_the_spread_of_weft_s_random_weights(self) -> None:
        try:
            import numpy as np
        except ImportError:
            self.skipTest("numpy is not installed")
        from peers import gguf, random_gguf

        sparse = {
            **CONFIG, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 64, "vocab_size": 2048,
        }  # fmt: skip
        path = self.folder / "a.gguf"
        for form, n_bytes in [("q8_0", 34), ("q4_0", 18)]:
            random_gguf.write(sparse, form, path)
            got = path.read_bytes()
            named = random_gguf.shapes(sparse)
            self.assertIn(("blk.0.ffn_down_exps.weight", (8, 32, 64)), named)
            sizes = [gguf.padded(gguf.stored(name, shape, form)[1]) for name, shape in named]
            self.assertEqual(named[0], ("token_embd.weight", (2048, 32)))
            data = got[-sum(sizes) :]
            first = read(data[: 2048 * n_bytes], form, rows=2048)
            self.assertAlmostEqual(first.std(), 0.02, delta=0.0002)
            self.assertNotEqual(first[0].tolist(), first[1].tolist())
            norm = np.frombuffer(data[sizes[0] : sizes[0] + 128], np.float32)
            self.assertAlmostEqual(norm.mean(), 1, delta=0.1)
            random_gguf.write(sparse, form, path)
            self.assertEqual(path.read_bytes(), got)

    def test_a_file_is_laid_out_as_its_header_says(self) -> None:
        try:
            import numpy as np
        except ImportError:
            self.skipTest("numpy is not installed")
        from peers import gguf

        (self.folder / "config.json").write_text(json.dumps(CONFIG))
        values = np.linspace(-4, 4, 4 * 32, dtype=np.float32).reshape(4, 32)
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        header = {
            "model.embed_tokens.weight": {"dtype": "BF16", "shape": [4, 32], "data_offsets": [0, 256]},
            "model.layers.0.mlp.down_proj.weight": {"dtype": "BF16", "shape": [4, 32], "data_offsets": [0, 256]},
            "model.norm.weight": {"dtype": "BF16", "shape": [32], "data_offsets": [0, 64]},
        }
        raw = json.dumps(header).encode()
        file = struct.pack("<Q", len(raw)) + raw + bits.tobytes()
        (self.folder / "model.safetensors").write_bytes(file)
        truth = gguf.f32(bits)
        for form, n_bytes, error in [("bf16", 256, 0.0), ("q8_0", 136, 0.02), ("q4_0", 72, 0.3)]:
            path = self.folder / f"{form}.gguf"
            gguf.write(self.folder, form, path)
            got = path.read_bytes()
            self.assertEqual(got[:4] + got[4:8], b"GGUF" + struct.pack("<I", 3))
            for name in (b"token_embd.weight", b"blk.0.ffn_down.weight", b"output_norm.weight"):
                self.assertIn(name, got)
            data = got[-(2 * gguf.padded(n_bytes) + 128) :]
            self.assertLessEqual(np.abs(read(data[:n_bytes], form) - truth).max(), error)
            self.assertEqual(data[-128:], truth[0].tobytes())


def read(data: bytes, form: str, rows: int = 4) -> "object":
    """Blocks as ggml reads them: a scale in f16, then 32 levels."""
    import numpy as np

    if form == "bf16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(4, 32)
    blocks = np.frombuffer(data, np.uint8).reshape(rows, -1)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if form == "q8_0":
        return scale * blocks[:, 2:].view(np.int8)
    low, high = blocks[:, 2:] & 15, blocks[:, 2:] >> 4
    return scale * (np.concatenate([low, high], axis=1).astype(np.float32) - 8)


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
