#!/usr/bin/env bash
# Runs the fuzz targets on all cores, or on $CORES, of a machine that need not have cargo.
#
#     tools/fuzz_campaign.sh --bundle TO
#     TO/fuzz_campaign.sh OUT SECONDS [TARGET=INPUTS...]
#
# The first builds the targets as one stripped program into the folder TO, with their corpora and
# this script. The second runs them there, all unless some are named, until each has had its inputs
# (ten million) or the time is up; those that are named first begin first. A target's inputs are
# shared out among as many processes as there are cores, each with its own seed; what one finds new,
# the others of its target read.
#
# OUT/fuzz.tar.xz is all that comes of it. In it, fuzz.json is a run file: inputs, faults, time and
# memory of each target. faults/ has the inputs that broke a target, new/ those that reached new code,
# log.txt what the processes said last. fuzz.json is printed too.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"

if [[ "${1:-}" == --bundle ]]; then
    to="$(mkdir -p "${2:?a folder for the programs}" && cd "$2" && pwd)"
    shift 2
    cd "$here/.."
    programs="${CARGO_TARGET_DIR:-fuzz/target}/x86_64-unknown-linux-gnu/release"
    # As fuzz/run builds them, but without tracing comparisons: that took half of the time, and what
    # slow targets compare with is in their dictionaries.
    (cd fuzz && cargo fuzz build --fuzz-dir . --sanitizer none --release --no-trace-compares any)
    install -m 755 "$programs/any" "$to/any"
    strip "$to/any"
    rm -rf "$to/corpus"
    cp -r fuzz/corpus fuzz/*.dict tools/fuzz_campaign.sh "$to/"
    # Requests and parcels are read for the bundled model, whose weights are not read: zeros will do.
    tiny=assets/weft-tiny
    mkdir -p "$to/$tiny"
    cp $tiny/config.json $tiny/*_config.json $tiny/tokenizer.json $tiny/*.jinja "$to/$tiny/"
    header=$(($(od -An -tu8 -N8 $tiny/model.safetensors) + 8))
    head -c "$header" $tiny/model.safetensors >"$to/$tiny/model.safetensors"
    truncate -s "$(stat -c %s $tiny/model.safetensors)" "$to/$tiny/model.safetensors"
    git describe --always --dirty --abbrev=7 >"$to/commit"
    exit
fi

OUT="$(mkdir -p "${1:?a folder for the results}" && cd "$1" && pwd)"
seconds="${2:?how many seconds at most}"
shift 2
wanted=("$@")
if [[ ${#wanted[@]} -eq 0 ]]; then
    wanted=()
    for one in "$here"/corpus/*; do
        wanted+=("${one##*/}")
    done
fi
cores="${CORES:-$(nproc)}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export WEFT_TEST_TREE="$here"
export OUT here work START=$EPOCHSECONDS SECONDS_IN_ALL="$seconds"
# Chunks are read from files: in memory, if the system has such a place.
[[ -z "${TMPDIR:-}" && -w /dev/shm ]] && export TMPDIR=/dev/shm

# job TARGET INPUTS SEED: one process after another, until they had as many inputs. A fault ends a
# process; the next begins with another seed. Each adds a line to jobs: target, inputs, status,
# memory, time.
job() {
    local target="$1" inputs="$2" seed="$3" length=4096 dictionary=() log status start left ran
    [[ "$target" == gguf || "$target" == safetensors ]] && length=16384
    [[ -f "$here/$target.dict" ]] && dictionary=(-dict="$here/$target.dict")
    mkdir -p "$work/new/$target" "$work/faults"
    for _ in {1..8}; do
        start=$EPOCHSECONDS status=0 log="$work/$target-$seed.log"
        left=$((START + SECONDS_IN_ALL - start))
        if ((left < 2 || inputs <= 0)); then
            return 0
        fi
        WEFT_FUZZ_TARGET="$target" timeout -k 5 $((left + 30)) "$here/any" "$work/new/$target" "$here/corpus/$target" \
            -seed="$seed" -runs="$inputs" -max_total_time="$left" -max_len="$length" -timeout=10 \
            -report_slow_units=1 -rss_limit_mb=3072 -print_final_stats=1 \
            -artifact_prefix="$work/faults/$target-" "${dictionary[@]}" >"$log" 2>&1 || status=$?
        stat() { sed -n "s/^stat::$1: *//p" "$log" | tail -n 1; }
        ran="$(stat number_of_executed_units)"
        printf '%s\t%s\t%s\t%s\t%s\n' "$target" "${ran:-0}" "$status" \
            "$(stat peak_rss_mb)" $((EPOCHSECONDS - start)) >>"$work/jobs"
        { printf '==== %s, seed %s, status %s\n' "$target" "$seed" "$status"
            grep -avE '^#[0-9]+|^(Dictionary|INFO|"|###)' "$log" | tail -n 40 | cut -c1-2000; } \
            >"$log.said"
        rm "$log"
        inputs=$((inputs - ${ran:-0})) seed=$((seed + 100000000))
        [[ $status -ne 0 ]] || break
    done
}
export -f job

# The shares of all targets in turn: those of fast targets end early and leave their cores.
for share in $(seq "$cores"); do
    for one in "${wanted[@]}"; do
        inputs=10000000
        [[ "$one" == *=* ]] && inputs="${one#*=}"
        echo "${one%%=*} $(((inputs + cores - 1) / cores)) $((START % 100000 * 100 + share))"
    done
done >"$work/queue"
: >"$work/jobs"
xargs -P "$cores" -L 1 bash -c 'job "$@"' _ <"$work/queue"

cpu="$(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1)"
{
    printf '{"command": "fuzz_campaign.sh OUT %s%s",\n' "$seconds" "${*:+ $*}"
    printf ' "commit": "%s", "machine": "%s, %s cores",\n' "$(cat "$here/commit")" "$cpu" "$cores"
    printf ' "model": "none: inputs that fuzzers make up", "seconds": %s,\n' \
        $((EPOCHSECONDS - START))
    printf ' "targets": [\n'
    comma=
    for one in "${wanted[@]}"; do
        target="${one%%=*}"
        printf '%s' "$comma"
        awk -F '\t' -v target="$target" '$1 == target {
                n++; inputs += $2; faults += $3 != 0; seconds += $5; if ($4 > most) most = $4
            }
            END { printf "  {\"target\": \"%s\", \"inputs\": %d, \"faults\": %d, \"processes\": %d,",
                    target, inputs, faults, n
                printf " \"core_seconds\": %d, \"inputs_per_core_second\": %d, \"peak_mb\": %d}",
                    seconds, seconds ? inputs / seconds : 0, most }' "$work/jobs"
        comma=$',\n'
    done
    printf '\n ]\n}\n'
} >"$work/fuzz.json"
cat "$work"/*.said >"$work/log.txt"
XZ_OPT=-1 tar -C "$work" -cJf "$OUT/fuzz.tar.xz" fuzz.json log.txt faults new
find "$work/faults" -type f -printf '%f %s bytes\n'
cat "$work/fuzz.json"
# Faults are what it is for to find, and fail.
[[ -z "$(find "$work/faults" -type f -print -quit)" ]]
