#!/bin/sh
# Rebuild the lock files, which have hashes and no index's address. Needs uv.
set -eu
lock() {
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --no-emit-find-links --no-header --extra emulator "$@" pyproject.toml
}
lock --group build --output-file requirements/run.lock
lock --extra server --group dev --output-file requirements/dev.lock
