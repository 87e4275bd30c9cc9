# The developer's habits. Users need only cargo, see README.md.
.PHONY: check check-all test golden eval kernels kernels-all emulate gpu gpu-bundle fuzz release open-kernels

# What CI runs.
check:
	.ci/run

# What CI runs; then the release build's demo, every kernel in clangd and for every architecture,
# and the emulator on all its models.
check-all: check open-kernels kernels-all emulate
	cargo run --release --locked | grep '^answer   The captain of the Krogaste is Probrosur.$$'

test:
	cargo test --workspace

# Records what transformers computes; needs torch and transformers, see the scripts' headers.
golden:
	python3 tools/golden.py
	python3 tools/golden_prompts.py
	python3 tools/golden_retrieval.py
	python3 tools/golden_gguf.py

# Answers the bundled model's 1,000 held-out questions on this machine's CPU.
eval:
	cargo run --release -p weft-cpu --example eval_tiny -- 1000 target/eval-cpu.json

# Opens every CUDA source in clangd, as an editor does, and fails on errors.
open-kernels:
	tools/open_kernels.sh

# Compiles the CUDA kernels that changed since they last passed, without a GPU, and records what
# passes.
kernels:
	LD_LIBRARY_PATH="$$(tools/nvrtc.sh)" WEFT_REQUIRE_NVRTC=1 WEFT_RECORD_KERNELS=1 cargo test -p weft-cuda --test compile --test compile_experts

# Compiles every CUDA kernel for every architecture, whatever the record says; decode kernels must
# not spill.
kernels-all:
	LD_LIBRARY_PATH="$$(tools/nvrtc.sh)" WEFT_REQUIRE_NVRTC=1 WEFT_EVERY_KERNEL=1 cargo test -p weft-cuda --test compile --test compile_experts

# Runs the persistent kernel's source on the CPU, under two orders of blocks and copies, and records
# what passes; needs g++ on x86-64.
emulate:
	tools/emulate/emulate.py --record

# Tests the CUDA device; fails if there is none.
gpu:
	WEFT_REQUIRE_GPU=1 cargo test --release -p weft-cuda

# What a machine with a GPU and without cargo needs to test and measure the CUDA device: the test
# program with the files it reads, and `weft`, stripped, in target/gpu (or $GPU_BUNDLE).
GPU_BUNDLE ?= target/gpu
gpu-bundle:
	tools/gpu_bundle.sh $(GPU_BUNDLE)

# Runs each fuzz target for a minute (or $FUZZ_SECONDS); needs cargo-fuzz, see fuzz/README.md.
FUZZ_SECONDS ?= 60
fuzz:
	fuzz/run $(FUZZ_SECONDS)

# Writes dist/weft-<version>-<target>.tar.gz and its checksum.
release:
	tools/release.sh
