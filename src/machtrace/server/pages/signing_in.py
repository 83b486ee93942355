"""Signing in: a token becomes a cookie."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from machtrace.reports.html.markup import element, text
from machtrace.server.bodies import read_body
from machtrace.server.browser import is_of_own_page, sign_in, sign_out
from machtrace.server.limits import BAD_REQUEST, FORBIDDEN, UNAUTHORIZED, RefusedError
from machtrace.server.pages.frame import SEE_OTHER, SIGN_IN, page
from machtrace.server.service import Service
from machtrace.server.tokens import Scope

_FORM_BYTES = 1 << 16
_FORM_FIELDS = 100
_HELP = (
    '<p class="note">The administrator of the server creates tokens: '
    "<code>machtrace serve FOLDER --new-token read</code></p>"
)


async def read_form(service: Service, request: Request) -> dict[str, str]:
    """Return the fields of a form of one of this server's pages.

    Raises:
        RefusedError: another site's page sent it, or it is malformed or too large.
    """
    if is_of_own_page(request) is False:
        raise RefusedError(FORBIDDEN, "a page of another site cannot use this server")
    with service.memory.reservation() as room:
        data = await read_body(request, _FORM_BYTES, service.limits, room)
    try:
        return dict(parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=_FORM_FIELDS))
    except ValueError:
        raise RefusedError(BAD_REQUEST, "the form is malformed") from None


def may(service: Service, request: Request, *scopes: Scope) -> bool:
    """Whether the token of a request has one of some scopes, or permits everything."""
    token = getattr(request.state, "token", "")
    return not token or service.tokens.scope(token) in (Scope.ADMIN, *scopes)


async def sign_in_page(service: Service, request: Request) -> Response:
    """Return the form for a token."""
    return _page(service, request, _next(request.query_params.get("next", "")))


async def receive_token(service: Service, request: Request) -> Response:
    """Let the browser send a valid token from now on."""
    form = await read_form(service, request)
    token, after = form.get("token", "").strip(), _next(form.get("next", ""))
    scope = service.tokens.scope(token) if token else None
    if scope is None:
        return _page(service, request, after, "This token is not valid.", UNAUTHORIZED)
    if scope is Scope.INGEST:
        message = "This token can send reports only; pages need one of scope read or admin."
        return _page(service, request, after, message, FORBIDDEN)
    response = RedirectResponse(after, SEE_OTHER)
    sign_in(request, response, token)
    return response


async def receive_sign_out(service: Service, request: Request) -> Response:
    """Let the browser forget the token."""
    await read_form(service, request)
    response = RedirectResponse(SIGN_IN, SEE_OTHER)
    sign_out(response)
    return response


def _page(
    service: Service, request: Request, after: str, problem: str = "", status: int = 200
) -> Response:
    if service.tokens.is_open:
        body = element("p", "This server has no tokens: programs of its own machine need none.")
        return page(service, request, "Sign in", body, status=status)
    shown = element("p", text(problem), class_="refusal", id="problem", role="alert")
    described = ' aria-describedby="problem" aria-invalid="true"' if problem else ""
    body = (
        f'<form class="sign-in" method="post" action="{SIGN_IN}">{shown if problem else ""}'
        '<label for="token">Token</label>'
        '<input id="token" name="token" type="password" required autocomplete="current-password" '
        f'spellcheck="false" autofocus{described}>'
        f'<input type="hidden" name="next" value="{text(after)}">'
        '<button class="main">Sign in</button></form>' + _HELP
    )
    return page(service, request, "Sign in", body, status=status)


def _next(address: str) -> str:
    """Return an address of this server, whatever a link states."""
    is_own = address.startswith("/") and not address.startswith(("//", "/\\"))
    return address if is_own and address.isprintable() and "\\" not in address else "/"
