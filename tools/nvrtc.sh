#!/usr/bin/env bash
# Puts NVRTC, which compiles the CUDA kernels without a GPU, into a folder (target/nvrtc unless given),
# once, and prints the folder that belongs on LD_LIBRARY_PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
to="${1:-target/nvrtc}"
version=13.0.88
if [[ ! -f "$to/$version" ]]; then
    rm -rf "$to"
    python3 -m venv "$to" >&2
    "$to/bin/pip" install --quiet "nvidia-cuda-nvrtc==$version" >&2
    touch "$to/$version"
fi
dirname "$(find "$(cd "$to" && pwd)" -name 'libnvrtc.so.13' | head -n 1)"
