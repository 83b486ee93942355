"""One issue, and decisions about it."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from machtrace.errors import ArgumentError
from machtrace.server.bodies import read_body
from machtrace.server.limits import BAD_REQUEST, NOT_FOUND, RefusedError
from machtrace.server.service import Service
from machtrace.server.tokens import token_name
from machtrace.warehouse.documents import issue_document
from machtrace.warehouse.grouping.issues import Issue
from machtrace.warehouse.triage import State
from machtrace.warehouse.warehouse import Warehouse

_BODY_BYTES = 1 << 16
MAX_NOTE_LENGTH = 4000
"""Characters."""


async def answer_issue(service: Service, request: Request) -> Response:
    """Return an issue, by its identifier or an earlier one."""
    return await service.reading(request, _issue, request.path_params["issue"])


def _issue(warehouse: Warehouse, name: str) -> Response:
    issue = issue_of(warehouse, name)
    document = issue_document(issue, warehouse.decisions().get(issue.id, []))
    return JSONResponse({**document, "earlier": warehouse.earlier_issues(issue.id)})


async def receive_decision(service: Service, request: Request) -> Response:
    """Store a decision about an issue."""
    with service.memory.reservation() as room:
        data = await read_body(request, _BODY_BYTES, service.limits, room)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RefusedError(BAD_REQUEST, f"the decision is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise RefusedError(BAD_REQUEST, 'a decision is {"state": TEXT, "note": TEXT}')
    state, note = document.get("state"), document.get("note", "")
    name = request.path_params["issue"]
    present = await decide(service, request, name, state, note)
    return JSONResponse({"id": present, "state": state, "note": note})


async def decide(service: Service, request: Request, issue: str, state: Any, note: Any) -> str:  # noqa: ANN401 - any value of a request
    """Store a decision, and return the present identifier of its issue.

    Raises:
        RefusedError: the state is unknown, the note is no text or too long, or there is no such
            issue.
    """
    if state not in [each.value for each in State] or not isinstance(note, str):
        states = ", ".join(each.value for each in State)
        raise RefusedError(BAD_REQUEST, f"a decision has a state ({states}) and a note")
    if len(note) > MAX_NOTE_LENGTH:
        raise RefusedError(BAD_REQUEST, f"the note is longer than {MAX_NOTE_LENGTH} characters")

    def work(warehouse: Warehouse) -> str:
        try:
            return warehouse.decide(issue, State(state), note.encode("utf-8", "replace").decode())
        except ArgumentError as error:
            raise RefusedError(NOT_FOUND, str(error)) from None

    present = await service.performing(work)
    by = token_name(getattr(request.state, "token", ""))
    service.log.add("decision", issue=present, state=state, token=by)
    return present


def issue_of(warehouse: Warehouse, name: str) -> Issue:
    """Return an issue, by its identifier or an earlier one.

    Raises:
        RefusedError: there is none.
    """
    present = warehouse.present_issue(name)
    for issue in warehouse.issues():
        if issue.id == present:
            return issue
    raise RefusedError(NOT_FOUND, f"no issue is called {name[:100]}")
