#!/bin/sh
# What cargo starts programs with (.cargo/config.toml). Test programs lie in a folder `deps`; others,
# and tests on a machine without Python, are run as they are.
case "$1" in
*/deps/*) command -v python3 >/dev/null && exec python3 "$(dirname "$0")/run_test.py" "$@" ;;
esac
exec "$@"
