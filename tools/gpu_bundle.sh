#!/usr/bin/env bash
# Builds the CUDA device's test programs and `weft`, stripped, into a folder that can be copied to a
# machine with a GPU. Run there, in the folder: `WEFT_REQUIRE_GPU=1 ./parity`, and so on. Test data is looked for where this checkout is.
set -euo pipefail
cd "$(dirname "$0")/.."
to="${1:-target/gpu}"
tests=(parity forms sampling reports drafts persistent copies answers take_over two_devices)
examples=(op_times decode_times draft_times)
mkdir -p "$to"
cargo build --release --locked -p weft-cli --bin weft
install -m 755 target/release/weft "$to/weft"
for name in "${tests[@]}"; do
    test="$(cargo test --release --locked -p weft-cuda --test "$name" --no-run --message-format=json |
        python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == sys.argv[1]:
        print(message["executable"])' "$name")"
    install -m 755 "$test" "$to/$name"
done
for name in "${examples[@]}"; do
    cargo build --release --locked -p weft-cuda --example "$name"
    install -m 755 "target/release/examples/$name" "$to/$name"
done
(cd "$to" && strip weft "${tests[@]}" "${examples[@]}")
# What compares with transformers, see their first lines.
cp -r tools/peers tools/peers.py tools/teacher_forced.py "$to/"
