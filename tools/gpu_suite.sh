#!/usr/bin/env bash
# Tests the CUDA device on a machine with a GPU, from a folder that gpu_bundle.sh made.
#
#     ./gpu_suite.sh OUT [SECTION ...]
#
# Sections: the test programs forms, experts, persistent, parity, sampling, reports, drafts,
# answers, host_experts, copies, two_devices; `small`, the kernels of an older GPU compiled for
# compute_80 with a small card's limits; `sanitizers`; `held_out`, the bundled model's questions in
# bf16, int8 and int4; `timed`, tests that measure, and so have the GPU to themselves: take_over,
# and the choice of the faster way; `ncu`, decoding under the profiler. All but ncu run unless others
# are given.
#
# Programs wait for compilers most of the time, so $SIDE (4) of them run side by side, in the order
# given. Sanitizers come when all of those are done, because a launch whose blocks wait for one
# another has little patience; then what measures.
#
# OUT/tests.txt is a run file: what every program said, its time and its status. Nothing ends at the
# first failure. Each program has a limit of its own, and none begins after $SECONDS_IN_ALL (530).
# Kernels are compiled once, into $WEFT_KERNEL_CACHE.
set -uo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
out="$(mkdir -p "${1:?a folder for the results}" && cd "$1" && pwd)"
shift
cd "$here"
sections=("$@")
if [[ ${#sections[@]} -eq 0 ]]; then
    sections=(forms experts persistent parity sampling reports drafts answers host_experts copies two_devices
        small sanitizers held_out timed)
fi
in_all="${SECONDS_IN_ALL:-530}" side="${SIDE:-4}"
export WEFT_REQUIRE_GPU=1
export WEFT_TEST_TREE="${WEFT_TEST_TREE:-$here}"
export WEFT_KERNEL_CACHE="${WEFT_KERNEL_CACHE:-/tmp/weft-kernels-$UID}"
# The driver keeps what it translates from compute_80.
export CUDA_CACHE_PATH="$WEFT_KERNEL_CACHE/translated" CUDA_CACHE_MAXSIZE=4294967296
mkdir -p -m 700 "$WEFT_KERNEL_CACHE"
report="$out/tests.txt" log="$out/log.txt"
: >"$log"

machine() {
    local gpu cpu
    gpu="$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)"
    cpu="$(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1)"
    echo "${gpu:-no GPU} (name, driver), $(nproc) cores, $cpu"
}

commit="$(cat "$here/commit" 2>/dev/null || echo unknown)"
model="small models and widths of qwen3-0.6b, random weights; the goldens; weft-tiny"
{
    echo "# command: ./gpu_suite.sh OUT ${sections[*]}"
    echo "# commit: $commit"
    echo "# machine: $(machine)"
    echo "# model: $model"
    echo "# Kernels in the cache before: $(find "$WEFT_KERNEL_CACHE" -name '*.cubin' | wc -l)"
} >"$report"

left() { echo $((in_all - SECONDS)); }

# What is worth keeping of a program's output; the rest is in the log.
kept='^test |^test result|^running|panicked|^failures|SUMMARY|^thread|right$|differ|^error|rror:'

# said NAME FILE STATUS SECONDS: adds a program's lines to the report.
said() {
    local name="$1" from="$2" status="$3" took="$4" how="rc $3"
    [[ $status -eq 124 || $status -eq 137 ]] && how="OUT OF TIME, rc $status"
    local n_kernels lines
    n_kernels="$(find "$WEFT_KERNEL_CACHE" -name '*.cubin' | wc -l)"
    lines="$(grep -aE "$kept" "$from" | cut -c1-300 | head -n 120)"
    # Programs that run side by side each write at once.
    printf '\n== %s\n%s\n%s\n' "$name" "$lines" "$how, $took s, $n_kernels kernels in the cache" >>"$report"
    { echo "==== $name ($how, $took s)"; tail -c 400000 "$from"; } >"$from.log"
    cat "$from.log" >>"$log"
    echo "$SECONDS s: $name: $how, $took s: $(grep -aE '^test result|SUMMARY|right$' "$from" | tail -n 1)"
    rm -f "$from" "$from.log"
}

# timed LIMIT NAME COMMAND...: runs it, for as long as it may.
timed() {
    local limit="$1" name="$2" from start status
    shift 2
    if [[ $(left) -lt 5 ]]; then
        printf '\n== %s\ndid not begin: no time was left\n' "$name" >>"$report"
        echo "$name: did not begin"
        return
    fi
    [[ $limit -gt $(left) ]] && limit="$(left)"
    from="$(mktemp)"
    start=$SECONDS
    timeout -k 5 "$limit" "$@" >"$from" 2>&1
    status=$?
    said "$name" "$from" "$status" $((SECONDS - start))
}

# beside LIMIT NAME COMMAND...: the same beside others, when there is room.
beside() {
    while [[ $(jobs -rp | wc -l) -ge $side ]]; do wait -n; done
    timed "$@" &
}

# The kernels of an older GPU. The driver translates them when they are loaded; the test of random
# shapes has the most.
small() {
    local small=(env WEFT_TEST_GPU=small)
    beside 200 "small: forms" "${small[@]}" ./forms match
    beside 200 "small: parity, random shapes" "${small[@]}" ./parity every_op_matches
    beside 200 "small: parity" "${small[@]}" ./parity --skip every_op_matches --skip warpgroups_do_not_show
}

# The four tools side by side: first on the persistent kernel, which waits for itself and has little
# patience; then on products and attention of prompts by warpgroups, pages laid out, coded products,
# tokens chosen with masks and reported, and copies beside steps. racecheck reports words that the
# persistent kernel's copying warp polls, and stages that one lane gives back for its warp: those are
# meant. synccheck reports warps of `attend_units` that give a raw page back and do not wait for the
# others: the first warp waits before it asks for the next page, and the rest wait for that page.
sanitizers() {
    command -v compute-sanitizer >/dev/null || { echo "sanitizers: no compute-sanitizer"; return; }
    wait
    checked persistent a_few_tokens_of_a_small_model
    checked experts a_few_tokens_of_small_experts
    wait
    checked parity blocks_of_any_size_give_the_same_bits
    checked copies who_uses_a_page_next_comes_after_the_copy
    checked reports choices_are_the_sampler_s_of_101
    checked forms mixes_by_warpgroups_match_the_reference
}

# checked PROGRAM TEST: begins one test under every tool.
checked() {
    local tool
    for tool in memcheck initcheck synccheck racecheck; do
        timed 110 "$tool: $1 $2" compute-sanitizer --tool "$tool" --print-limit 20 \
            --error-exitcode 9 "./$1" --test-threads 1 --exact "$2" </dev/null &
    done
}

held_out() {
    local form words
    for form in bf16 int8 int4; do
        words="--device cuda"
        [[ $form != bf16 ]] && words+=" --quantize $form"
        timed 100 "held out: $form" python3 tools/answer_held_out.py --weft "$here/weft" --serve "$words" \
            --machine "$(machine)" --commit "$commit" --save "$out/answers-$form.json" &
    done
}

# What measures: which way is faster.
alone() {
    wait
    timed 60 take_over ./take_over
    timed 60 "persistent: the faster way" ./persistent the_faster_way
}

# A launch of a few tokens, which is not repeated: the metrics fit into one pass. Its clocks are
# those that tests have. The profiler's caches and orders differ, so times are not the bench's.
ncu_metrics=gpu__time_duration.sum,dram__bytes_read.sum
ncu_metrics+=,dram__throughput.avg.pct_of_peak_sustained_elapsed
ncu_metrics+=,sm__inst_executed_pipe_tensor.sum
ncu_metrics+=,smsp__issue_active.avg.pct_of_peak_sustained_active
ncu_metrics+=,group:smsp__pcsamp_warp_stall_reasons
decode_under_ncu() {
    command -v ncu >/dev/null || { echo "ncu: not installed"; return; }
    wait
    local shape form words
    for shape in qwen3-0.6b qwen3-8b; do
        for form in bf16 int4; do
            words=(--shape "$shape" -p 0 -n 8 -d 200 -b 1 -r 1 --follow --kernels persistent)
            [[ $form != bf16 ]] && words+=(--quantize "$form")
            timed 60 "ncu: $shape $form" ncu --clock-control none --cache-control none \
                --kernel-name regex:^decode --launch-skip 4 --launch-count 2 --csv --page raw \
                --metrics "$ncu_metrics" --log-file "$out/ncu-$shape-$form.csv" \
                ./weft bench --device cuda "${words[@]}" --quiet
        done
    done
}

for section in "${sections[@]}"; do
    case "$section" in
    persistent) beside 250 persistent ./persistent --skip the_faster_way ;;
    small | sanitizers | held_out) "$section" ;;
    timed) alone ;;
    ncu) decode_under_ncu ;;
    *)
        if [[ -x "./$section" ]]; then
            beside 250 "$section" "./$section"
        else
            echo "there is no section and no test program $section" | tee -a "$report"
        fi
        ;;
    esac
done

wait
for form in bf16 int8 int4; do
    [[ " ${sections[*]} " != *" held_out "* || -f "$out/answers-$form.json" ]] ||
        echo "held out: $form left no file" | tee -a "$report"
done
summary="$(grep -acE '^rc 0' "$report") programs passed, \
$(grep -acE '^rc [1-9]|^OUT OF TIME' "$report") failed or ran out of time, \
$(grep -ac '^did not begin' "$report") did not begin; $SECONDS s in all"
printf '\n%s\n' "$summary" | tee -a "$report"
grep -aqE '^rc [1-9]|^OUT OF TIME|^did not begin' "$report" && exit 1 || exit 0
