#!/usr/bin/env python3
"""Runs the persistent kernel's source on the CPU, and those that it shares pages with: no GPU, no CUDA; a C++ compiler, cargo and Python 3.11.

    tools/emulate/emulate.py [--models MODEL ...] [--against REVISION] [--log FILE] [--record | --changed]

Kernels are compiled as they lie in crates/weft-cuda/src, with kernels/ptx.cuh of this folder in the place of theirs.
Each case is run with two orders of blocks and copies; everything that was written must be the same. Every op must give
what the reference device gives for the same input, within the bounds that hold on a GPU (tests/parity.rs). Attention
must be the same bits in `attend` and `attend_block`. With a revision, its kernels are run too, and must leave the same
bits after every op. See cuda.h for what is emulated, and what is not.

passed.txt has a hash of everything that a model's result depends on, as it was when the model passed. `--record` writes
it. `--changed` skips the models whose hash still holds, and counts each as skipped.
"""

import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KERNELS = "crates/weft-cuda/src/"
CRATES = ROOT / "crates"
EXAMPLE = CRATES / "weft-cuda/examples/emulation.rs"
PASSED = HERE / "passed.txt"
TINY = dict(hidden_size=30, num_attention_heads=6, num_key_value_heads=2, head_dim=10, intermediate_size=37, vocab_size=101)
ODD = dict(hidden_size=301, num_attention_heads=15, num_key_value_heads=3, head_dim=46, intermediate_size=533, vocab_size=397)
# Rows of more than twelve units a warp, which are packed in strips.
LONG = dict(hidden_size=64, num_attention_heads=8, num_key_value_heads=2, head_dim=16, intermediate_size=3500, vocab_size=61)
MODELS = {"tiny": ("qwen3", TINY, 8), "bias": ("qwen2", TINY, 8), "odd": ("llama", ODD, 12), "long": ("qwen3", LONG, 6)}
# More blocks than tiles: some owe the others nothing, and are late.
MODELS |= {"spare": ("qwen3", TINY, 20)}
# Coded weights: the forms of `emulation.rs`; rows in one strip and in several.
CODED = dict(hidden_size=300, num_attention_heads=4, num_key_value_heads=2, head_dim=40, intermediate_size=4500, vocab_size=61)
NARROW = dict(CODED, intermediate_size=600)
FORMS = {"int4": "1", "int8": "0", "mixed": "mixed", "fp8": "13", "table": "15"}
MODELS |= {name: ("qwen3", CODED if name == "mixed" else NARROW, 6) for name in FORMS}
# Inputs that a warp does not hold, and blocks with 23 tiles of `proj` and `down`: the last has no
# other to be multiplied with. Two runs a unit, with minimums; an odd number of units in `down`.
ALONE = dict(CODED, hidden_size=1096, intermediate_size=1100)
FORMS |= {"alone": "7"}
MODELS |= {"alone": ("qwen3", ALONE, 6)}
# Experts: sizes that fill nothing, every other or the first layer dense, more experts than lanes of a warp, ties; rows
# of several strips, and forms.
def experts(count, chosen, width, **keys):
    return dict(dict(num_experts=count, num_experts_per_tok=chosen, moe_intermediate_size=width, norm_topk_prob=True), **keys)


SPARSE = {"sparse": (TINY, experts(5, 2, 37), 8, "random"), "ties": (TINY, experts(7, 3, 40, mlp_only_layers=[0]), 8, "ties")}
SPARSE |= {"sparse-odd": (ODD, experts(70, 9, 300, decoder_sparse_step=2, norm_topk_prob=False), 12, "random")}
SPARSE |= {"sparse-few": (TINY, experts(3, 1, 9), 20, "random")}
SPARSE |= {"sparse-int4": (NARROW, experts(12, 4, 300), 6, "1"), "sparse-int8": (NARROW, experts(12, 4, 1500), 6, "0")}
SPARSE |= {"sparse-mixed": (NARROW, experts(12, 4, 700), 6, "mixed"), "sparse-wide": (ALONE, experts(6, 4, 140), 12, "random")}
SPARSE |= {"sparse-wide-int4": (ALONE, experts(6, 4, 140), 12, "1")}
MODELS |= {name: ("qwen3_moe", dict(sizes, **keys), n) for name, (sizes, keys, n, _) in SPARSE.items()}
FORMS |= {name: form for name, (_, _, _, form) in SPARSE.items()}
# How a lane's rows lie: one span; one with marks inside sections; spans that begin in the middle of
# a page, with marks. Tokens of a lane may be a draft, all of which are outputs.
PLAIN, MARKED, IN_SPANS = range(3)
DRAFTED = 4
# Lanes, tokens of a lane, rows before, steps, stages, layout.
CASES = [(1, 1, 0, 2, 8, PLAIN), (1, 1, 600, 6, 10, PLAIN), (1, 1, 16800, 2, 10, PLAIN), (2, 1, 250, 8, 10, PLAIN), (4, 1, 60, 6, 10, PLAIN)]
CASES += [(4, 1, 200, 8, 9, PLAIN), (8, 1, 5, 6, 16, PLAIN), (4, 2, 60, 1, 11, PLAIN | DRAFTED), (8, 1, 250, 3, 8, PLAIN)]
CASES += [(1, 1, 150, 6, 8, MARKED), (1, 1, 600, 6, 10, MARKED), (4, 1, 60, 6, 10, MARKED), (4, 2, 250, 1, 8, MARKED | DRAFTED)]
CASES += [(1, 1, 290, 6, 10, IN_SPANS), (2, 1, 900, 3, 10, IN_SPANS), (4, 2, 60, 1, 11, IN_SPANS | DRAFTED)]
# Drafts of one lane and beside others, in all kernels, over the end of a page and of a section.
CASES += [(1, 2, 30, 1, 10, PLAIN | DRAFTED), (1, 4, 62, 1, 10, MARKED | DRAFTED), (2, 2, 253, 1, 8, IN_SPANS | DRAFTED)]
CASES += [(1, 8, 250, 1, 11, MARKED | DRAFTED), (2, 4, 600, 1, 10, PLAIN | DRAFTED), (1, 4, 900, 1, 10, IN_SPANS | DRAFTED)]
CODED_CASES = [(1, 1, 60, 2, 10, PLAIN), (2, 1, 60, 2, 10, PLAIN), (4, 1, 60, 2, 10, PLAIN), (8, 1, 60, 3, 8, PLAIN)]
ALONE_CASES = [(1, 1, 60, 1, 10, PLAIN)]
SPARSE_CASES = [(1, 1, 60, 3, 10, PLAIN), (2, 1, 250, 3, 10, MARKED), (4, 1, 60, 2, 10, PLAIN), (4, 2, 60, 1, 8, PLAIN | DRAFTED)]
SPARSE_CASES += [(1, 1, 600, 2, 10, MARKED), (8, 1, 5, 2, 16, PLAIN), (1, 4, 62, 1, 10, MARKED | DRAFTED)]
# Models with experts fold parts in a way of their own: more of them than are fetched at once, and of several tokens.
FOLDED_CASES = [(1, 1, 16800, 2, 10, PLAIN), (2, 4, 600, 1, 10, PLAIN | DRAFTED)]
SPARE_CASES = [(2, 1, 250, 8, 10, PLAIN), (4, 1, 200, 8, 9, PLAIN), (8, 1, 5, 6, 16, PLAIN), (2, 1, 600, 6, 10, MARKED)]


def kernels(folder, revision):
    """The folder with the kernels' sources, of a revision or as they lie here."""
    if revision is None:
        return ROOT / KERNELS
    archive = subprocess.run(["git", "archive", revision, KERNELS], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    return folder / KERNELS


def config(model):
    """The text of a model's config.json."""
    family, sizes, _ = MODELS[model]
    of_all = dict(num_hidden_layers=2, max_position_embeddings=512, rope_theta=10000.0, tie_word_embeddings=False)
    return json.dumps(dict(sizes, model_type=family, **of_all))


@functools.cache
def host_program():
    """The program that answers for the host, built."""
    command = ["cargo", "build", "--quiet", "-p", "weft-cuda", "--example", "emulation", "--message-format=json"]
    built = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = map(json.loads, built.splitlines())
    return next(m["executable"] for m in messages if m.get("target", {}).get("name") == "emulation" and m.get("executable"))


def host(*arguments):
    """Asks the host for something; what it prints if it fails."""
    ran = subprocess.run([host_program(), *map(str, arguments)], capture_output=True, text=True)
    return ran.stderr if ran.returncode else ""


def headers(folder, model):
    """Has the host write what a model's kernels are compiled with."""
    (folder / "matrices").unlink(missing_ok=True)
    failed = host("headers", config(model), FORMS.get(model, "plain"), MODELS[model][2], folder)
    if failed:
        sys.exit(failed)


def sources(folder):
    """The harness, and every file that it includes from these folders, with their texts."""
    found, names = {}, ["harness.cpp"]
    while names:
        name = names.pop()
        path = next((p for p in (base / name for base in (folder, HERE, ROOT / KERNELS)) if p.is_file()), None)
        if path and name not in found:
            found[name] = path.read_bytes()
            # Files name others from one of the folders, or from where they lie themselves.
            for other in re.findall(rb'^\s*#\s*include\s*"([^"]+)"', found[name], re.M):
                names += [other.decode(), os.path.normpath(os.path.join(os.path.dirname(name), other.decode()))]
    return found


def code(text):
    """A file's code: without comments that have their own lines, and without tests at its end. They change no result."""
    lines = text.split("#[cfg(test)]\nmod tests {")[0].splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith("//"))


def reference():
    """The files that the host's check depends on: the modules of two crates that it names, and those that they name."""
    modules, names = set(), [("weft_core", "lib"), ("weft_testing", "lib"), *named("", EXAMPLE)]
    while names:
        crate, name = names.pop()
        if (crate, name) not in modules:
            modules.add((crate, name))
            # The first page of weft-core shows what users need.
            names += named(crate, *module(crate, name)) if (crate, name) != ("weft_core", "lib") else []
    return sorted(path for crate, name in modules for path in module(crate, name))


def module(crate, name):
    """The files of a module, without those that have only tests."""
    source = CRATES / crate.replace("_", "-") / "src"
    found = [source / f"{name}.rs", *(source / name).rglob("*.rs")]
    return [path for path in found if path.is_file() and path.name != "tests.rs"]


def named(crate, *paths):
    """The modules that files of a crate name, each with its crate."""
    text, found = "\n".join(code(path.read_text()) for path in paths), []
    for of, word in (("weft_core",) * 2, ("weft_testing",) * 2, (crate, "crate")):
        lists = " ".join(re.findall(rf"\b{word}::\{{([^}}]*)}}", text))
        found += [(of, name) for name in re.findall(rf"\b{word}::([a-z_]+)", text) + re.findall(r"[a-z_]+", lists)]
    return found


def dependencies(package):
    """The crates that a package depends on, as Cargo.lock has them: others change more often."""
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    found, names = {}, [package]
    while names:
        name = names.pop()
        # A dependency is named with its version where there are several.
        for crate in locked:
            if name in (crate["name"], f"{crate['name']} {crate['version']}") and name not in found:
                found[name] = json.dumps(crate, sort_keys=True)
                names += crate.get("dependencies", [])
    return "\n".join(found[name] for name in sorted(found))


def hash_of(folder, model):
    """A hash of everything that the result for a model depends on; the folder has its headers."""
    hashed = hashlib.sha256(pathlib.Path(__file__).read_bytes())
    hashed.update(subprocess.run(["g++", "-dumpfullversion"], check=True, capture_output=True).stdout)
    hashed.update(dependencies("weft-cuda").encode())
    matrices = folder / "matrices"
    hashed.update(matrices.read_bytes() if matrices.exists() else b"")
    files = {name: text.decode() for name, text in sources(folder).items()}
    files |= {str(path.relative_to(ROOT)): path.read_text() for path in [EXAMPLE, *reference()]}
    for name, text in sorted(files.items()):
        hashed.update(f"{name} {len(code(text))}\n{code(text)}".encode())
    return hashed.hexdigest()


def passed():
    """The hash of each model that passed."""
    return dict(line.split() for line in PASSED.read_text().splitlines()) if PASSED.exists() else {}


def build(folder, model, revision):
    program = folder / f"{model}-{revision or 'here'}"
    headers(folder, model)
    # The first folder that has a file wins: emitted headers, then ptx.cuh of this folder, then what kernels are.
    folders = [f"-I{path}" for path in (folder, HERE, kernels(folder, revision))]
    command = ["g++", "-O2", "-std=c++17", "-w", "-fpermissive", "-fno-strict-aliasing"]
    subprocess.run([*command, *folders, str(HERE / "harness.cpp"), "-o", str(program)], check=True)
    return program


def run(program, case, seed, *dump):
    matrices = program.parent / "matrices"
    environment = dict(os.environ, **({"WEFT_MATRICES": str(matrices)} if matrices.exists() else {}))
    command = [program, *map(str, case), str(seed), *dump]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=environment)
    return ran.stdout if ran.returncode == 0 else f"failed: {ran.returncode}\n{ran.stdout[-500:]}"


def check(model, case, here, there, folder):
    """Runs a case under both orders, and by an earlier build if there is one: whether all agree, and what to print."""
    dump = folder / f"{model}-{'-'.join(map(str, case))}.dump"
    outputs = [run(here, case, 1, dump), run(here, case, 2)] + ([run(there, case, 1)] if there else [])
    if outputs[0].startswith("failed"):
        return False, outputs[0]
    wrong = host("check", config(model), FORMS.get(model, "plain"), dump)
    dump.unlink()
    same = len(set(outputs)) == 1
    n_hashes = outputs[0].count("\n  ")
    against = f"NOT AS THE REFERENCE: {wrong}" if wrong else "as the reference"
    return same and not wrong, f"{'same' if same else 'DIFFERENT'}, {n_hashes} hashes, {against}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="REVISION", help="whose kernel must leave the same bits; its `Launch` and lists must be this one's")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    recording = parser.add_mutually_exclusive_group()
    recording.add_argument("--record", action="store_true", help="write down which models passed")
    recording.add_argument("--changed", action="store_true", help="skip models that passed as they are")
    parser.add_argument("--log", type=argparse.FileType("w"), default=sys.stdout)
    arguments = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models:
            headers(pathlib.Path(folder), model)
            hashed, failed_before = hash_of(pathlib.Path(folder), model), failures
            if arguments.changed and passed().get(model) == hashed:
                print(f"{model}: skipped, it passed as it is", file=arguments.log, flush=True)
                with open(os.environ.get("WEFT_SKIPPED", os.devnull), "a", encoding="utf-8") as skips:
                    skips.write("emulation unchanged\t\n")
                continue
            here = build(pathlib.Path(folder), model, None)
            there = build(pathlib.Path(folder), model, arguments.against) if arguments.against else None
            own = {"spare": SPARE_CASES, "alone": ALONE_CASES, "sparse": SPARSE_CASES + FOLDED_CASES}
            cases = own.get(model, SPARSE_CASES if model in SPARSE else CODED_CASES if model in FORMS else CASES)
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                jobs = [pool.submit(check, model, case, here, there, pathlib.Path(folder)) for case in cases]
                for case, job in zip(cases, jobs):
                    good, said = job.result()
                    failures += not good
                    print(f"{model} {case}: {said}", file=arguments.log, flush=True)
            if arguments.record and failures == failed_before:
                lines = passed() | {model: hashed}
                PASSED.write_text("".join(f"{name} {lines[name]}\n" for name in sorted(lines)))
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
