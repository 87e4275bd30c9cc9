#!/usr/bin/env bash
# Builds the CUDA device's test programs and `weft`, stripped, into a folder that can be copied to a
# machine with a GPU, with the files that they read. There, `./gpu_suite.sh OUT` runs all of it, and
# `WEFT_TEST_TREE=. WEFT_REQUIRE_GPU=1 ./parity` one program.
# $PROFILE (release unless given) builds the test programs; a dev build also checks for overflows.
set -euo pipefail
cd "$(dirname "$0")/.."
to="${1:-target/gpu}"
profile="${PROFILE:-release}"
tests=(parity forms experts host_experts sampling reports drafts persistent copies answers
    take_over two_devices)
examples=(op_times decode_times draft_times)
mkdir -p "$to"
cargo build --release --locked -p weft-cli --bin weft
install -m 755 target/release/weft "$to/weft"
cargo test --profile "$profile" --locked -p weft-cuda "${tests[@]/#/--test=}" --no-run \
    --message-format=json |
    python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["kind"] == ["test"]:
        print(message["target"]["name"], message["executable"])' |
    while read -r name program; do install -m 755 "$program" "$to/$name"; done
for name in "${examples[@]}"; do
    cargo build --release --locked -p weft-cuda --example "$name"
    install -m 755 "target/release/examples/$name" "$to/$name"
done
(cd "$to" && strip weft "${tests[@]}" "${examples[@]}")
# What they read, where a source tree has it.
mkdir -p "$to/crates/weft-core/tests/prompts" "$to/assets/weft-tiny" "$to/tools"
cp -r crates/weft-core/tests/golden "$to/crates/weft-core/tests/"
cp crates/weft-core/tests/prompts/tokenizer.json "$to/crates/weft-core/tests/prompts/"
cp assets/weft-tiny/heldout.jsonl "$to/assets/weft-tiny/"
# What runs them, and what compares with transformers: see their first lines.
cp -r tools/peers tools/peers.py tools/teacher_forced.py tools/answer_held_out.py "$to/tools/"
cp tools/gpu_suite.sh "$to/"
git describe --always --dirty --abbrev=7 >"$to/commit"
