"""Results of analyses as JSON documents."""

from __future__ import annotations

from typing import Any

from machtrace.reports.analysis.function_costs import FunctionCosts
from machtrace.reports.analysis.groups import FunctionDifference, GroupDifference, ReportGroup
from machtrace.reports.analysis.waits.graph import WaitGraph, WaitNode

_Object = dict[str, Any]


def functions(costs: FunctionCosts, count: int) -> _Object:
    """Those that most stacks end in."""
    return {
        "stacks": costs.weight,
        "functions": [
            {**one.function._asdict(), "own": one.own, "total": one.total, "path": one.path or None}
            for one in costs.functions[:count]
        ],
    }


def group(found: ReportGroup) -> _Object:
    """A group, with all that its fingerprint is of."""
    fingerprint = found.fingerprint
    return {
        "fingerprint": fingerprint.hash,
        "basis": fingerprint.basis.name.lower().replace("_", "-"),
        "is_build_sensitive": fingerprint.is_build_sensitive,
        "stack": None if found.subject is None else found.subject.value,
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
        "reports": list(found.reports),
        "exceptions": dict(found.exceptions),
        "versions": dict(found.versions),
        "systems": dict(found.systems),
        "models": dict(found.models),
    }


def waits(graph: WaitGraph, name: str) -> _Object:
    """A report's graph; numbers of threads are places in its list of them."""
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
                "threads": list(one.threads),
                "is_certain": one.is_certain,
                "is_noted": one.is_noted,
            }
            for one in graph.deadlocks
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


def group_change(found: GroupDifference) -> _Object:
    """A group in two sets."""
    return {
        "change": found.change.value,
        "before": found.before,
        "after": found.after,
        "fingerprint": found.group.fingerprint.hash,
        "title": found.group.fingerprint.title,
    }


def function_change(found: FunctionDifference) -> _Object:
    """A function in two sets."""
    return {
        **found.function._asdict(),
        **{name: value for name, value in found._asdict().items() if name != "function"},
    }
