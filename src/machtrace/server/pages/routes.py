"""Every address that answers with a page."""

from __future__ import annotations

from dataclasses import replace

from machtrace.server.endpoint import Endpoint, Handler
from machtrace.server.pages.frame import SIGN_IN, answer_file
from machtrace.server.pages.graphs.audit import AUDIT, audit_page
from machtrace.server.pages.graphs.diff import DIFF, diff_page
from machtrace.server.pages.graphs.flame import FLAME, flame_page
from machtrace.server.pages.graphs.function import FUNCTIONS, functions_page
from machtrace.server.pages.graphs.hangs import HANGS, hangs_page
from machtrace.server.pages.issue import issue_page, receive_issue_form
from machtrace.server.pages.issue_list import ISSUES, issues_page
from machtrace.server.pages.report import report_page
from machtrace.server.pages.signing_in import receive_sign_out, receive_token, sign_in_page
from machtrace.server.pages.sql import SQL, receive_sql, sql_page
from machtrace.server.pages.stack import stack_page, through_page
from machtrace.server.pages.symbols import SYMBOLS, receive_symbol_form, symbols_page
from machtrace.server.tokens import Scope

_CHOICES = {
    "since": "A range of time: 1d, 7d, 30d, 90d.",
    "kind": "A kind of report.",
    "app": "An app.",
    "build": "A build.",
    "where": "An SQL condition over the view stacks_of_reports.",
}
_STACKS = {"stacks": "subject or main; all threads and samples without it."}
_FORM = "application/x-www-form-urlencoded"
_READ = frozenset({Scope.READ})


def _page(
    path: str,
    summary: str,
    handler: Handler,
    *,
    scopes: frozenset[Scope] | None = _READ,
    **parameters: str,
) -> Endpoint:
    return Endpoint(
        method="GET",
        path=path,
        summary=summary,
        handler=handler,
        scopes=scopes,
        parameters=parameters,
        answers=("text/html",),
        is_loaded=scopes is not None,
        is_page=True,
    )


def _graph(
    path: str, summary: str, handler: Handler, choices: dict[str, str], **parameters: str
) -> Endpoint:
    return replace(_page(path, summary, handler), parameters={**choices, **parameters})


def _form(
    path: str,
    summary: str,
    handler: Handler,
    scopes: frozenset[Scope] | None = frozenset(),
    success: str = "303",
    body: str = _FORM,
) -> Endpoint:
    return Endpoint(
        method="POST",
        path=path,
        summary=summary,
        handler=handler,
        scopes=scopes,
        body=(body,),
        success=success,
        answers=("text/html",),
        is_loaded=True,
        is_page=True,
    )


PAGES: tuple[Endpoint, ...] = (
    _page(
        ISSUES,
        "Page: issues.",
        issues_page,
        since="A range of time: 1d, 7d, 30d, 90d.",
        kind="A kind of report.",
        app="An app.",
        build="A build.",
        where="An SQL condition over the view reports.",
        state="resolved, ignored or any; open ones without it.",
        sort="devices, last or first; by reports without it.",
        page="The number of a page, from 1.",
    ),
    _page("/issues/{issue}", "Page: an issue.", issue_page, was="An earlier identifier."),
    _form("/issues/{issue}", "Decide about an issue.", receive_issue_form),
    _page("/stacks/{key}", "Page: a stack.", stack_page),
    _page("/stacks/{key}/through/{depth}", "Page: stacks through a frame.", through_page),
    _page("/reports/{report}", "Page: a report.", report_page, thread="The number of a stack."),
    _page(
        SYMBOLS,
        "Page: symbols that are missing, and those that arrived.",
        symbols_page,
        scopes=frozenset({Scope.READ, Scope.SYMBOLS}),
    ),
    _form(
        SYMBOLS,
        "Store the symbols of a form's files.",
        receive_symbol_form,
        frozenset({Scope.SYMBOLS}),
        success="200",
        body="multipart/form-data",
    ),
    _graph(
        FLAME,
        "Page: the flame graph of stored stacks.",
        flame_page,
        {**_CHOICES, **_STACKS},
        function="A function that the stacks go through.",
        image="The image of the function.",
        family="A family of watched functions that the stacks call.",
        caller="The caller of the family.",
    ),
    _graph(
        DIFF,
        "Page: two sets of stacks, and what changed.",
        diff_page,
        _STACKS,
        kind="A kind of report.",
        app="An app.",
        build_a="The earlier side's build.",
        a="Its SQL condition over the view stacks_of_reports.",
        build_b="The later side's build.",
        b="Its condition.",
    ),
    _graph(
        FUNCTIONS,
        "Page: a function with its callers and callees; without a name all functions.",
        functions_page,
        {**_CHOICES, **_STACKS},
        name="The function.",
        image="Its image.",
        search="A part of names or images.",
    ),
    _graph(HANGS, "Page: hangs by device and time.", hangs_page, _CHOICES),
    _graph(AUDIT, "Page: who calls watched functions.", audit_page, {**_CHOICES, **_STACKS}),
    _page(SIGN_IN, "Page: signing in with a token.", sign_in_page, scopes=None, next="An address."),
    _form(SIGN_IN, "Sign in: the token becomes a cookie.", receive_token, None),
    _form("/sign-out", "Sign out.", receive_sign_out, None),
    _page(
        SQL,
        "Page: the rows of an SQL query.",
        sql_page,
        sql="One SELECT over the views.",
        format="csv, json or arrow: a download.",
    ),
    _form(
        SQL, "The address of a query, or its rows if it is too long for one.", receive_sql, _READ
    ),
    Endpoint(
        method="GET",
        path="/static/{name}",
        summary="The style sheet and the scripts of pages.",
        handler=answer_file,
        scopes=None,
        answers=("text/css", "text/javascript"),
    ),
)
