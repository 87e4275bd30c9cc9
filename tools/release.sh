#!/usr/bin/env bash
# Builds `weft` for users: dist/weft-<version>-<target>.tar.gz with the stripped binary, LICENSE,
# README and CHANGELOG, and its SHA-256 beside it. Paths and times of the machine are kept out, so that
# two builds of one commit by one toolchain can give the same bytes.
# TARGET=<triple> builds for another machine; that needs its standard library and a C compiler.
set -euo pipefail
cd "$(dirname "$0")/.."

version="$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)"
target="${TARGET:-$(rustc -vV | sed -n 's/^host: //p')}"
name="weft-$version-$target"
cargo_home="${CARGO_HOME:-$HOME/.cargo}"
# The time of the commit, for the dates in the archive.
SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH

# A folder of its own: other flags would have everything in target/ built anew.
RUSTFLAGS="--remap-path-prefix=$PWD=/weft --remap-path-prefix=$cargo_home=/cargo" \
    CARGO_PROFILE_RELEASE_STRIP=symbols \
    cargo build --release --locked -p weft-cli --bin weft --target "$target" \
    --target-dir target/dist

staged="$(mktemp -d)"
trap 'rm -r "$staged"' EXIT
mkdir -p "$staged/$name" dist
install -m 755 "target/dist/$target/release/weft" "$staged/$name/weft"
install -m 644 LICENSE README.md CHANGELOG.md "$staged/$name/"
tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --format=ustar --directory "$staged" "$name" | gzip --no-name --best >"dist/$name.tar.gz"
(cd dist && sha256sum "$name.tar.gz" | tee "$name.tar.gz.sha256")
