#!/usr/bin/env bash
# Drives the page in Debian's chromium against the real server. Installs what it needs: chromium and a
# typeface from Debian, playwright-core (which brings no browser) and axe-core from npm, pinned in
# package.json. If they cannot be installed, this suite counts as skipped, which CI refuses.
# `run.sh --install` only installs. Two files of tests run at once, each with its own browser and server:
# they wait more than they compute.
set -euo pipefail
cd "$(dirname "$0")"

skip() {
    printf 'skipped: the page in a browser: %s\n' "$*"
    printf 'no browser\t\n' >>"${WEFT_SKIPPED:-/dev/null}"
    exit
}

install_from_debian() {
    local as=()
    [[ $(id -u) == 0 ]] || as=(sudo -n)
    command -v apt-get >/dev/null || return 1
    "${as[@]}" apt-get update -qq >/dev/null 2>&1 || true
    DEBIAN_FRONTEND=noninteractive "${as[@]}" apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1
}

CHROMIUM="${CHROMIUM:-$(command -v chromium || command -v chromium-browser || true)}"
if [[ -z "$CHROMIUM" ]]; then
    install_from_debian chromium fonts-inter || skip "no chromium, and none could be installed"
    CHROMIUM="$(command -v chromium)" || skip "no chromium"
fi
export CHROMIUM

command -v node >/dev/null || install_from_debian nodejs npm || skip "no Node, and none could be installed"
(( $(node -p 'parseInt(process.versions.node)') >= 18 )) || skip "Node $(node --version) is too old, 18 is needed"

if ! node -e "require('playwright-core'); require('axe-core')" 2>/dev/null; then
    command -v npm >/dev/null || skip "no npm"
    npm install --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error --fetch-retries=1 \
        || skip "playwright-core could not be installed"
fi

[[ "${1:-}" != --install ]] || exit 0

# The binary that the tests before this were run with.
[[ -n "${WEFT_IS_BUILT:-}" ]] || (cd ../../../.. && cargo test --locked --workspace --no-run)
exec node --test --test-concurrency=2 --test-reporter=spec ./*.test.mjs
