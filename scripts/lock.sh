#!/bin/sh
# Writes the lock files anew. Needs uv. They hold hashes and no index's address.
set -eu
lock() {
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --no-emit-find-links --no-header --extra emulator "$@" pyproject.toml
}
lock --group build --output-file requirements/run.lock
lock --group dev --output-file requirements/dev.lock
