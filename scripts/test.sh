#!/bin/sh
# Runs the tests in two halves at once: those of one wait for other programs most of the time.
set -u
halves="tests/live tests/target tests/darwin"
log=$(mktemp)
trap 'kill "$other" 2>/dev/null; rm -f "$log"' EXIT
# shellcheck disable=SC2086 # several words each
.venv/bin/python -m pytest -p no:cacheprovider $halves >"$log" 2>&1 &
other=$!
.venv/bin/python -m pytest $(printf -- '--ignore=%s ' $halves) tests
status=$?
wait "$other" || status=$?
cat "$log"
exit "$status"
