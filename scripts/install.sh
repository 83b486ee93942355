#!/bin/sh
# Installs into .venv, made if need be: a lock file, or "package" for this project itself.
set -eu
[ -x .venv/bin/python ] || "${PYTHON:-python3}" -m venv .venv
if command -v uv >/dev/null 2>&1; then
    install() { uv pip install --quiet --compile-bytecode --python .venv/bin/python "$@"; }
else
    install() { .venv/bin/python -m pip --disable-pip-version-check install --quiet "$@"; }
fi
if [ "$1" = package ]; then
    # The build tools come from the lock; an isolated build would fetch others.
    PATH="$PWD/.venv/bin:$PATH" install --no-deps --no-build-isolation --reinstall-package machtrace . 2>/dev/null ||
        PATH="$PWD/.venv/bin:$PATH" install --no-deps --no-build-isolation --force-reinstall .
else
    install --require-hashes -r "$1"
fi
