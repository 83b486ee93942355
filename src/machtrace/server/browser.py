"""Requests of browsers: the cookie of a sign-in, and pages of other sites.

A browser states in ``Origin`` and ``Sec-Fetch-Site`` which page made a request; no script can
change them. Source: the Fetch standard, and Fetch Metadata Request Headers (W3C).
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

_COOKIE = "machtrace"
_SECURE_COOKIE = f"__Host-{_COOKIE}"
"""Browsers accept this name over TLS alone, and from no other host."""
_SECONDS = 30 * 86_400


def cookie_token(request: Request) -> str:
    """Return the token of a sign-in; empty without one."""
    cookies = request.cookies
    return cookies.get(_SECURE_COOKIE) or cookies.get(_COOKIE) or ""


def is_of_own_page(request: Request) -> bool | None:
    """Whether a page of this server made a request; None if the client does not state it."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    if origin is None:
        return None
    return bool(netloc := _netloc(origin)) and netloc == request.headers.get("host", "").lower()


def is_embedded(request: Request) -> bool:
    """Whether a page of another site loads a part of itself."""
    headers = request.headers
    is_other = headers.get("sec-fetch-site") == "cross-site"
    return is_other and headers.get("sec-fetch-dest") != "document"


def sign_in(request: Request, response: Response, token: str) -> None:
    """Let the browser send a token with its later requests."""
    # The page's own address states whether the browser's side of a proxy has TLS.
    is_secure = request.headers.get("origin", "").startswith("https://")
    response.set_cookie(
        _SECURE_COOKIE if is_secure else _COOKIE,
        token,
        max_age=_SECONDS,
        path="/",
        secure=is_secure,
        httponly=True,
        samesite="strict",
    )


def sign_out(response: Response) -> None:
    """Let the browser forget the token."""
    for name in (_COOKIE, _SECURE_COOKIE):
        response.delete_cookie(
            name, path="/", secure=name == _SECURE_COOKIE, httponly=True, samesite="strict"
        )


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
