#!/usr/bin/env python3
"""Runs the persistent kernel's source on the CPU, and those that it shares pages with: no GPU, no CUDA, a C++ compiler and cargo.

    tools/emulate/emulate.py [--models MODEL ...] [--against REVISION] [--log FILE]

Each case is run with two orders of blocks and copies; everything that was written must be the same, attention what its
definition says, and in `attend` and `attend_block` the same bits. With a revision, its kernel is run too, and must leave the same bits after every op. See cuda.h for what is emulated,
and what is not.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KERNELS = "crates/weft-cuda/src/"
# Of these only what stands before the kernels themselves is needed.
UP_TO = {
    "ops/norm_qkv.cu": "template <class M>",
    "ops/norm_gate_up.cu": "template <class M>",
    "kernels/norm.cuh": "// Computes",
}
LEFT_OUT = {f"kernels/{name}" for name in ["base.cuh", "matvec.cuh", "matmul.cuh", "wide.cuh"]}
LEFT_OUT |= {f"kernels/{name}.cu" for name in ["choose", "bandwidth"]}
LEFT_OUT |= {f"ops/{name}.cu" for name in ["proj_add", "down_add", "norm_head", "embed", "rope_store"]}
# Machine instructions of the kernel, and what they are here.
INSTRUCTIONS = [
    (r'asm volatile\("bar\.sync 1.*?\);', "meet_computing_warps();"),
    (r'asm volatile\("st\.relaxed\.gpu\.global\.u64 .*?\);(?=\n)', "*at = (u64)number << 32 | value;"),
    (r'asm volatile\("ld\.relaxed\.gpu\.global\.u64 .*?"memory"\);', "word = *at, let_others_run();"),
    (r'asm volatile\("ld\.relaxed\.gpu\.global\.v2\.u64 .*?"memory"\);', "words = {at[0], at[1]}, let_others_run();"),
    (r'asm volatile\("mov\.u64 %0, %globaltimer;".*?\);', "now = emulated_clock_ns();"),
    (r'asm volatile\("st\.relaxed\.sys\.global\.u64 .*?\);(?=\n)', "*at = (u64)number << 32 | value;"),
    (r'asm volatile\("mov\.u32 %0, %%ctaid\.x;" : "=r"\((\w+)\)\);', r"\1 = blockIdx.x;"),
    (r'asm volatile\("mov\.u32 %0, %%tid\.x;" : "=r"\((\w+)\)\);', r"\1 = threadIdx.x;"),
    (r'asm volatile\("prefetch\.global\.L2 .*?"memory"\);', "(void)at;"),
    (r"extern __shared__ .*? ring_memory\[\];", "u8 *ring_memory = current->block->dynamic;"),
    (r'asm volatile\("ld\.relaxed\.gpu\.global\.f32 .*?"memory"\);', "word = *at, let_others_run();"),
    (r'asm volatile\("st\.relaxed\.gpu\.global\.f32 .*?"f"\((.*?)\) : "memory"\);', r"*at = \1;"),
    (r'asm volatile\("trap;"\);', "abort();"),
    (r"extern __shared__ .*? keys\[\];", "u8 *keys = current->block->dynamic;"),
    (r"__shared__ (Pages|SectionScratch|Parts) (\w+);", r"\1 &\2 = of_block<\1, __COUNTER__>();"),
    (r"__shared__ Item items\[2\];", "using TwoItems = Item[2]; TwoItems &items = of_block<TwoItems, __COUNTER__>();"),
    (r"__shared__ u32 n_work, n_blocks;", "u32 &n_work = of_block<u32, __COUNTER__>(), &n_blocks = of_block<u32, __COUNTER__>();"),
    (r"extern __shared__ .*? pages\[\];", "static __align__(16) u8 pages[4 * SIDE_BYTES];"),  # one block after the other
    (r"__shared__ (__align__\(16\) u16 turned|float finals)", r"static \1"),
    (r"__shared__ BlockShared shared;", "BlockShared &shared = *(BlockShared *)current->block->shared.data();"),
    (r"while \(copier\.ring\.attended", "while (let_others_run(), copier.ring.attended"),
    (r"while \(!shared\.ring\.left\) \{\}", "while (!shared.ring.left) let_others_run();"),
    (r"written_before_copies", "before_copies_of_stored"),
]
TINY = dict(hidden_size=30, num_attention_heads=6, num_key_value_heads=2, head_dim=10, intermediate_size=37, vocab_size=101)
ODD = dict(hidden_size=301, num_attention_heads=15, num_key_value_heads=3, head_dim=46, intermediate_size=533, vocab_size=397)
# Rows of more than twelve units a warp, which are packed in stretches.
LONG = dict(hidden_size=64, num_attention_heads=8, num_key_value_heads=2, head_dim=16, intermediate_size=3500, vocab_size=61)
MODELS = {"tiny": ("qwen3", TINY, 8), "bias": ("qwen2", TINY, 8), "odd": ("llama", ODD, 12), "long": ("qwen3", LONG, 6)}
# More blocks than tiles: some owe the others nothing, and are late.
MODELS |= {"spare": ("qwen3", TINY, 20)}
# How a lane's rows lie: one span; one with marks inside sections; spans that begin in the middle of
# a page, with marks.
PLAIN, MARKED, IN_SPANS = range(3)
# Lanes, tokens of a lane, rows before, steps, stages, layout.
CASES = [(1, 1, 0, 2, 8, PLAIN), (1, 1, 600, 6, 10, PLAIN), (1, 1, 16800, 2, 10, PLAIN), (2, 1, 250, 8, 10, PLAIN), (4, 1, 60, 6, 10, PLAIN)]
CASES += [(3, 1, 200, 8, 9, PLAIN), (8, 1, 5, 3, 16, PLAIN), (4, 2, 60, 1, 11, PLAIN), (3, 2, 250, 1, 8, PLAIN)]
CASES += [(1, 1, 150, 6, 8, MARKED), (1, 1, 600, 6, 10, MARKED), (4, 1, 60, 6, 10, MARKED), (3, 2, 250, 1, 8, MARKED)]
CASES += [(1, 1, 290, 6, 10, IN_SPANS), (2, 1, 900, 3, 10, IN_SPANS), (4, 2, 60, 1, 11, IN_SPANS)]
SPARE_CASES = [(2, 1, 250, 8, 10, PLAIN), (3, 1, 200, 8, 9, PLAIN), (8, 1, 5, 3, 16, PLAIN), (2, 1, 600, 6, 10, MARKED)]


def source(path, revision):
    """A file of a revision, or as it lies here."""
    if revision is None:
        return (ROOT / path).read_text()
    return subprocess.run(["git", "show", f"{revision}:{path}"], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def kernel(revision):
    """The persistent kernel's sources as C++."""
    parts = []
    for name in re.findall(r'include_str!\("([^"]+)"\)', source(KERNELS + "kernels.rs", revision)):
        if name in LEFT_OUT:
            continue
        text = source(KERNELS + name, revision)
        if name in UP_TO:
            text = text[: text.index(UP_TO[name])]
        for pattern, here in INSTRUCTIONS:
            text = re.sub(pattern, here, text, flags=re.S)
        assert "asm volatile" not in text, f"{name} has an instruction that is not emulated"
        parts.append(f'#line 1 "{name}"\n{text}')
    return "\n".join(parts)


def constants(family, sizes):
    """What the kernels are compiled with for a model."""
    config = dict(sizes, model_type=family, num_hidden_layers=2, max_position_embeddings=512, rope_theta=10000.0)
    config = str(config).replace("'", '"')
    command = ["cargo", "run", "--quiet", "-p", "weft-cuda", "--example", "constants", "--", config]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()


def build(folder, model, revision):
    family, sizes, n_blocks = MODELS[model]
    (folder / "kernel.inc").write_text(kernel(revision))
    own = {"N_BLOCKS": n_blocks}
    if sizes["hidden_size"] > 8 * n_blocks:  # A block has several tiles: one chain.
        own |= {"PROJ_CHAINS": 1, "DOWN_CHAINS": 1}
    defines = [define for define in constants(family, sizes) if define.split("=")[0] not in own]
    defines += [f"{name}={value}" for name, value in own.items()]
    program = folder / f"{model}-{revision or 'here'}"
    command = ["g++", "-O2", "-std=c++17", "-w", "-fpermissive", "-fno-strict-aliasing", f"-I{HERE}", f"-I{folder}"]
    subprocess.run([*command, *(f"-D{define}" for define in defines), str(HERE / "harness.cpp"), "-o", str(program)], check=True)
    return program


def run(program, case, seed):
    ran = subprocess.run([program, *map(str, case), str(seed)], capture_output=True, text=True, timeout=300)
    return ran.stdout if ran.returncode == 0 else f"failed: {ran.returncode}\n{ran.stdout[-500:]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="REVISION", help="whose kernel must leave the same bits; its `Launch` and lists must be this one's")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--log", type=argparse.FileType("w"), default=sys.stdout)
    arguments = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models:
            here = build(pathlib.Path(folder), model, None)
            there = build(pathlib.Path(folder), model, arguments.against) if arguments.against else None
            cases = CASES if model != "spare" else SPARE_CASES
            runs = [(here, 1), (here, 2)] + ([(there, 1)] if there else [])
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                jobs = [[pool.submit(run, program, case, seed) for program, seed in runs] for case in cases]
                for case, same in zip(cases, jobs):
                    outputs = [job.result() for job in same]
                    good = len(set(outputs)) == 1 and not outputs[0].startswith("failed")
                    failures += not good
                    n_hashes = outputs[0].count("\n  ")
                    print(f"{model} {case}: {'same' if good else 'DIFFERENT'}, {n_hashes} hashes", file=arguments.log, flush=True)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
