#!/usr/bin/env bash
# Builds the CUDA device's test programs and `weft`, stripped, into a folder that can be copied to a
# machine with a GPU. Run there: `WEFT_REQUIRE_GPU=1 ./parity` in the folder, and `./sampling`.
set -euo pipefail
cd "$(dirname "$0")/.."
to="${1:-target/gpu}"
mkdir -p "$to"
cargo build --release --locked -p weft-cli --bin weft
tests="$(cargo test --release --locked -p weft-cuda --test parity --test sampling --no-run --message-format=json |
    python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] in ("parity", "sampling"):
        print(message["target"]["name"], message["executable"])')"
install -m 755 target/release/weft "$to/weft"
while read -r name program; do
    install -m 755 "$program" "$to/$name"
done <<<"$tests"
cargo build --release --locked -p weft-cuda --example op_times
install -m 755 target/release/examples/op_times "$to/op_times"
strip "$to/weft" "$to/parity" "$to/sampling" "$to/op_times"
# What compares with transformers, see their first lines.
cp -r tools/peers tools/peers.py tools/teacher_forced.py "$to/"
