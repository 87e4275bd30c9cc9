#!/usr/bin/env bash
# Builds the CUDA device's test program and `weft`, stripped, into a folder that can be copied to a
# machine with a GPU. Run there: `WEFT_REQUIRE_GPU=1 ./parity` in the folder.
set -euo pipefail
cd "$(dirname "$0")/.."
to="${1:-target/gpu}"
mkdir -p "$to"
cargo build --release --locked -p weft-cli --bin weft
tests="$(cargo test --release --locked -p weft-cuda --test parity --no-run --message-format=json |
    python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == "parity":
        print(message["executable"])')"
install -m 755 target/release/weft "$to/weft"
install -m 755 "$tests" "$to/parity"
cargo build --release --locked -p weft-cuda --example op_times
install -m 755 target/release/examples/op_times "$to/op_times"
strip "$to/weft" "$to/parity" "$to/op_times"
# What compares with transformers, see their first lines.
cp -r tools/peers tools/peers.py tools/teacher_forced.py "$to/"
