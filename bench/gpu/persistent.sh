#!/usr/bin/env bash
# Tests the persistent kernel and times it beside graphs; run in a folder that `make gpu-bundle` made, on a machine with a
# GPU. Writes to $OUT. The tests take about 30 s where kernels are compiled already, the figures about 40 s.
set -uo pipefail
out="${OUT:-.}"
export WEFT_REQUIRE_GPU=1
timeout 120 ./persistent --test-threads=1 2>&1 | tee "$out/persistent-tests.txt" | tail -n 20
for arguments in "qwen3-0.6b 30,200,8000 1,2,4" "qwen3-0.6b 32000 1" "qwen3-1.7b 200 1,4"; do
    # shellcheck disable=SC2086
    timeout 60 ./decode_times $arguments | tee -a "$out/persistent.jsonl" | cut -c1-330
done
# A small shape under the sanitizer, where it is installed.
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        timeout 100 compute-sanitizer --tool "$tool" ./persistent --test-threads=1 a_few_tokens_of_a_small_model 2>&1 |
            tee "$out/persistent-$tool.txt" | tail -n 3
    done
fi
