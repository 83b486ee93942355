"""Results of analyses as JSON documents."""

from __future__ import annotations

from typing import Any

from machtrace.reports.analysis.function_costs import FunctionCosts
from machtrace.reports.analysis.groups import FunctionDifference, GroupDifference, ReportGroup
from machtrace.reports.analysis.waits.graph import WaitGraph, WaitNode

_Object = dict[str, Any]


def functions(costs: FunctionCosts, count: int) -> _Object:
    """Return the document of the functions in which most stacks end."""
    return {
        "stacks": costs.weight,
        "functions": [
            {
                **cost.function._asdict(),
                "own": cost.own,
                "total": cost.total,
                "path": cost.path or None,
            }
            for cost in costs.functions[:count]
        ],
    }


def group(report_group: ReportGroup) -> _Object:
    """Return the document of a group, with the frames of its fingerprint."""
    fingerprint = report_group.fingerprint
    return {
        "fingerprint": fingerprint.hash,
        "basis": fingerprint.basis.name.lower().replace("_", "-"),
        "is_build_sensitive": fingerprint.is_build_sensitive,
        "stack": None if report_group.subject is None else report_group.subject.value,
        "frames": [
            {
                "place": frame.place,
                "image": frame.image or None,
                "name": frame.name,
                "is_named": frame.is_named,
                "reason": frame.reason.value,
            }
            for frame in fingerprint.frames
        ],
        "reports": list(report_group.reports),
        "count": report_group.count,
        "exceptions": dict(report_group.exceptions),
        "versions": dict(report_group.versions),
        "systems": dict(report_group.systems),
        "models": dict(report_group.models),
    }


def waits(graph: WaitGraph, name: str) -> _Object:
    """Return the document of a report's graph; threads are numbered by their list's indices."""
    return {
        "report": name,
        "threads": list(map(_node, graph.threads)),
        "edges": [
            {
                "waiter": edge.waiter,
                "owner": edge.owner,
                "owner_label": edge.owner_label or None,
                "source": edge.source.value,
                "is_certain": edge.source.is_certain,
                "samples": edge.samples,
                "text": edge.text,
            }
            for edge in graph.edges
        ],
        "deadlocks": [
            {
                "threads": list(deadlock.threads),
                "is_certain": deadlock.is_certain,
                "is_noted": deadlock.is_noted,
            }
            for deadlock in graph.deadlocks
        ],
        "shared_events": [
            {"event": list(event), "threads": list(threads)}
            for event, threads in graph.shared_events
        ],
        "ownerless": list(graph.ownerless),
    }


def _node(node: WaitNode) -> _Object:
    thread = node.thread
    wait = thread.wait
    return {
        "process": node.process,
        "index": thread.index,
        "id": thread.id,
        "name": thread.name,
        "queue": thread.queue,
        "samples": thread.samples,
        "wait": None
        if wait is None
        else {"kind": wait.kind.value, "function": wait.function, "is_idle": wait.kind.is_idle},
    }


def group_change(difference: GroupDifference) -> _Object:
    """Return the document of a group in two sets."""
    return {
        "change": difference.change.value,
        "before": difference.before,
        "after": difference.after,
        "fingerprint": difference.group.fingerprint.hash,
        "title": difference.group.fingerprint.title,
    }


def function_change(difference: FunctionDifference) -> _Object:
    """Return the document of a function in two sets."""
    return {
        **difference.function._asdict(),
        **{name: value for name, value in difference._asdict().items() if name != "function"},
    }
