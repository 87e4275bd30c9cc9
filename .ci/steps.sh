# What `.ci/run` is made of: steps, one after the other or beside the others. The caller sets `log`, a
# file, and `notes`, a folder for the output of what runs beside.

# Runs a command, and prints what it is and how long it took.
step() {
    local start=$SECONDS
    printf '\n== %s\n' "$*"
    "$@" 2>&1 | tee -a "$log"
    printf '== %d s\n' $((SECONDS - start))
}

# Runs a function beside what follows, in its own process group; `join NAME` waits for it, prints its
# steps, and fails if it did.
declare -A running
beside() {
    set -m
    (
        log=/dev/null
        "$1"
    ) >"$notes/$1" 2>&1 </dev/null &
    running[$1]=$!
    set +m
}
join() {
    local code=0
    wait "${running[$1]}" || code=$?
    unset "running[$1]"
    tee -a "$log" <"$notes/$1"
    return "$code"
}

# Whatever still runs if a step fails, with all that it started, ends before the script does: it is
# asked to, and killed if it has not ended after `grace` tenths of a second.
grace=100
end_all() {
    local group n
    for group in "${running[@]}"; do
        kill -- "-$group" 2>/dev/null || continue
        for ((n = 0; n < grace; n++)); do
            kill -0 -- "-$group" 2>/dev/null || continue 2
            sleep 0.1
        done
        kill -KILL -- "-$group" 2>/dev/null || true
    done
}
trap end_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
