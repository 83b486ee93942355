"""The frame of all pages: head, navigation, style sheet and policy; and pages of refusals."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from machtrace.errors import MachtraceError
from machtrace.reports.html.markup import element, text
from machtrace.reports.html.shell import resource
from machtrace.server.browser import cookie_token
from machtrace.server.limits import FORBIDDEN, NOT_FOUND, UNAUTHORIZED, RefusedError
from machtrace.server.service import Service

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SIGN_IN = "/sign-in"
NAVIGATION = (
    ("/", "Issues"),
    ("/flame", "Flame graph"),
    ("/diff", "Compare"),
    ("/hangs", "Hangs"),
    ("/audit", "Audit"),
    ("/symbols", "Symbols"),
    ("/sql", "SQL"),
)
_GRAPHS = f"{__package__}.graphs"
_MADE = {
    "page.css": ((__package__, "page.css"), (__package__, "graphs.css")),
    "graph.js": (("machtrace.reports.html", "flame_canvas.js"), (_GRAPHS, "graph.js")),
}
"""By name: the package and name of each file that it is made of."""
_FILES = {"page.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml"}
"""Media types of what pages load, by name; scripts are listed by :func:`script`."""
_SCRIPT = "text/javascript; charset=utf-8"
SEE_OTHER = 303


def page(
    service: Service,
    request: Request,
    title: str,
    body: str,
    *,
    section: str = "",
    scripts: tuple[str, ...] = (),
    status: int = 200,
    head: str = "",
) -> Response:
    """Return a page.

    Args:
        service: the server.
        request: the one that is answered.
        title: text; it is the heading, too.
        body: HTML.
        section: the address in :data:`NAVIGATION` that the page belongs to.
        scripts: names of files of this package; the page is whole without them.
        status: the HTTP status.
        head: further elements of the head, as HTML.
    """
    links = "".join(
        element("a", name, href=address, aria_current="page" if address == section else None)
        for address, name in NAVIGATION
    )
    warehouse = text(service.folder.resolve().name) if _is_admitted(service, request) else ""
    loaded = "".join(f'<script src="{_address(name)}" defer></script>' for name in scripts)
    written = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title)} · {warehouse or 'machtrace'}</title>"
        f'<link rel="stylesheet" href="{_address("page.css")}">'
        f'<link rel="icon" href="{_address("icon.svg")}">{loaded}{head}</head>\n'
        '<body><a class="skip" href="#main">Skip to the content</a>'
        f'<header class="top"><a class="brand" href="/"><b>machtrace</b> <bdi>{warehouse}</bdi></a>'
        f'<nav aria-label="Pages">{links}</nav>{_session(request)}</header>\n'
        f'<main id="main" tabindex="-1"><h1>{text(title)}</h1>{body}</main></body></html>\n'
    )
    # Without referrers a browser leaves the origin out of forms, too.
    headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "same-origin"}
    return HTMLResponse(written, status, headers)


def refusal_page(
    service: Service, request: Request, error: MachtraceError, answer: Response
) -> Response:
    """Return a page in words instead of an answer for programs; or the page to sign in.

    Args:
        service: the server.
        request: the one that is refused.
        error: the reason.
        answer: the refusal for programs, with its status and headers.
    """
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    is_reading = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    if answer.status_code == UNAUTHORIZED and is_reading:
        if request.headers.get("sec-fetch-site") != "cross-site":
            return RedirectResponse(f"{SIGN_IN}?{urlencode({'next': here})}", SEE_OTHER)
        # A link on another site: the browser leaves the cookie out once.
        again = f'<meta http-equiv="refresh" content="0;url={text(quote(here, safe="/?&=%"))}">'
        body = element("p", element("a", "Continue", href=here))
        return page(service, request, "One moment", body, head=again)
    sentences = element("p", text(sentence(str(error))), class_="refusal")
    if error.remedy and error.remedy != RefusedError.remedy:
        sentences += element("p", text(sentence(error.remedy)))
    if answer.status_code == FORBIDDEN:
        other = f"{SIGN_IN}?{urlencode({'next': here})}"
        sentences += element("p", element("a", "Sign in with another token", href=other))
    else:
        sentences += element("p", element("a", "All issues", href="/"))
    status = answer.status_code
    made = page(service, request, HTTPStatus(status).phrase, sentences, status=status)
    for name in ("retry-after", "connection"):
        if name in answer.headers:
            made.headers[name] = answer.headers[name]
    return made


async def answer_file(_service: Service, request: Request) -> Response:
    """Return the style sheet or a script."""
    name = request.path_params["name"]
    if name not in _FILES and not name.endswith(".js"):
        raise RefusedError(NOT_FOUND, "there is no such file")
    try:
        content = _content(name)
    except (OSError, ValueError):
        raise RefusedError(NOT_FOUND, "there is no such file") from None
    # Its address has its hash.
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(content, headers=headers, media_type=_FILES.get(name, _SCRIPT))


def _is_admitted(service: Service, request: Request) -> bool:
    """Whether a request may see what is served."""
    return bool(getattr(request.state, "token", "")) or service.tokens.is_open


def _session(request: Request) -> str:
    if not cookie_token(request):
        return ""
    button = '<button class="quiet">Sign out</button>'
    return f'<form class="session" method="post" action="/sign-out">{button}</form>'


@cache
def _content(name: str) -> str:
    if "/" in name or "\\" in name:
        raise ValueError(name)
    parts = _MADE.get(name, ((__package__, name),))
    return "".join(resource(part, package) for package, part in parts)


@cache
def _address(name: str) -> str:
    digest = sha256(_content(name).encode()).digest()[:9]
    return f"/static/{name}?{urlsafe_b64encode(digest).decode()}"


def sentence(words: str) -> str:
    """Return words as a sentence."""
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")
