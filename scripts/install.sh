#!/bin/sh
# Install a lock file, or this project ("package"), into .venv, which is created if missing.
set -eu
[ -x .venv/bin/python ] || "${PYTHON:-python3}" -m venv .venv
PATH="$PWD/.venv/bin:$PATH" # the build tools are there

if command -v uv >/dev/null 2>&1; then
    install="uv pip install --quiet --compile-bytecode --python .venv/bin/python"
    again="--reinstall-package machtrace"
else
    install=".venv/bin/python -m pip --disable-pip-version-check install --quiet"
    again="--force-reinstall"
fi

# An isolated build would fetch build tools that no lock names.
case $1 in
package) $install $again --no-deps --no-build-isolation . ;;
*) $install --require-hashes -r "$1" ;;
esac
