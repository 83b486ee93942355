"""Groups and decisions in a manifest."""

from __future__ import annotations

import time
from collections.abc import Iterable

from machtrace.errors import ArgumentError
from machtrace.warehouse.groups import Issue
from machtrace.warehouse.manifest import Manifest
from machtrace.warehouse.triage import State, VariantKey, moved_issues, resolve


def store_groups(manifest: Manifest, issues: Iterable[Issue]) -> dict[str, str]:
    """Store the issue of each variant, and return the aliases of earlier issues.

    Raises:
        FileAccessError: they cannot be stored.
    """
    now: dict[VariantKey, str] = {}
    reports: dict[VariantKey, int] = {}
    for issue in issues:
        for variant in issue.variants:
            now[issue.kind, variant.stack] = issue.id
            reports[issue.kind, variant.stack] = variant.reports
    aliases = moved_issues(manifest.variants(), now, reports, manifest.aliases())
    rows = [(kind, stack, issue) for (kind, stack), issue in now.items()]
    with manifest.transaction() as database:
        database.executemany("INSERT OR REPLACE INTO variant VALUES (?, ?, ?)", rows)
        database.execute("DELETE FROM alias")
        database.executemany("INSERT INTO alias VALUES (?, ?)", aliases.items())
    return aliases


def store_decision(manifest: Manifest, issue: str, state: State, note: str) -> str:
    """Store a decision about an issue, and return its present identifier.

    Raises:
        ArgumentError: no issue has this identifier.
        FileAccessError: it cannot be stored.
    """
    present = resolve(issue, manifest.aliases())
    if present not in manifest.variants().values():
        raise ArgumentError(
            f"no issue is called {issue}", remedy="list them: machtrace warehouse groups FOLDER"
        )
    with manifest.transaction() as database:
        row = (present, state.value, note, time.time_ns())
        database.execute("INSERT INTO decision VALUES (?, ?, ?, ?)", row)
    return present
