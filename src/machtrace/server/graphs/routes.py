"""Every address that answers with a graph for programs."""

from __future__ import annotations

from machtrace.server.endpoint import Endpoint, Handler
from machtrace.server.graphs.answers import (
    DIFFERENCES,
    FLAMES,
    answer_audit,
    answer_diff,
    answer_flame,
    answer_functions,
    answer_hangs,
)
from machtrace.server.tables import TABLES
from machtrace.server.tokens import Scope

_STACKS = "An SQL condition over the view stacks_of_reports."
_REPORTS = "An SQL condition over the view reports."


def _graph(
    path: str, summary: str, handler: Handler, formats: dict[str, str], **parameters: str
) -> Endpoint:
    return Endpoint(
        method="GET",
        path=path,
        summary=summary,
        handler=handler,
        scopes=frozenset({Scope.READ}),
        parameters={**parameters, "format": f"One of {', '.join(formats)}."},
        answers=tuple(dict.fromkeys(formats.values())),
        is_loaded=True,
    )


GRAPHS: tuple[Endpoint, ...] = (
    _graph(
        "/v1/flame",
        "The stacks that a condition selects, as one weighted tree of functions.",
        answer_flame,
        FLAMES,
        where=_STACKS,
        nodes="The number of functions of the tree, the heaviest.",
        function="A function that the stacks go through.",
        image="The image of the function.",
        family="A family of watched functions that the stacks call; see /v1/audit.",
        caller="The caller of the family; empty: the system alone.",
    ),
    _graph(
        "/v1/diff",
        "Two sets of stacks, and how the share of each function changed, with intervals.",
        answer_diff,
        DIFFERENCES,
        a=_STACKS,
        b="The same of the later side.",
        limit="The number of changes in JSON.",
    ),
    _graph(
        "/v1/functions",
        "Functions by weight; or one of them with callers, callees, builds and lines.",
        answer_functions,
        {**TABLES, **FLAMES},
        name="A function; without it all of them.",
        image="Its image.",
        where=_STACKS,
        search="A part of names or images, of all functions.",
        limit="The number of functions.",
        side="callers or callees, of one function's tree in formats of /v1/flame.",
    ),
    _graph(
        "/v1/hangs",
        "The latest hangs, with the app's function, duration in ns, and what was waited for.",
        answer_hangs,
        TABLES,
        where=_REPORTS,
        limit="The number of hangs.",
    ),
    _graph(
        "/v1/audit",
        "How many stacks call each family of watched functions, by the first caller of the app.",
        answer_audit,
        TABLES,
        where=_STACKS,
    ),
)
