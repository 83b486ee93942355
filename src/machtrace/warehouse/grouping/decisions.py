"""Decisions in a manifest."""

from __future__ import annotations

import time
from collections.abc import Callable

from machtrace.errors import ArgumentError
from machtrace.warehouse.manifest import Manifest
from machtrace.warehouse.triage import State, resolve


def store_decision(
    manifest: Manifest, issue: str, state: State, note: str, computed: Callable[[], list[str]]
) -> str:
    """Store a decision about an issue, and return its present identifier.

    Args:
        manifest: where it is stored.
        issue: the identifier of the issue, or an earlier one.
        state: the decision.
        note: any text.
        computed: returns the identifiers of all issues, of which some are not stored yet.

    Raises:
        ArgumentError: no issue has this identifier.
        FileAccessError: it cannot be stored.
    """
    present = resolve(issue, manifest.aliases())
    if not manifest.has_issue(present) and present not in computed():
        raise ArgumentError(
            f"no issue is called {issue}", remedy="list them: machtrace warehouse groups FOLDER"
        )
    with manifest.transaction() as database:
        row = (present, state.value, note, time.time_ns())
        database.execute("INSERT INTO decision VALUES (?, ?, ?, ?)", row)
    return present
