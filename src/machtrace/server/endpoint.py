"""An address of a server: who may use it, and what it takes and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field, replace
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from machtrace.frozen import dataclass
from machtrace.server.service import Service
from machtrace.server.tokens import Scope

Handler: TypeAlias = Callable[[Service, Request], Awaitable[Response]]
_JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An address and a method."""

    method: str
    path: str
    summary: str
    handler: Handler
    scopes: frozenset[Scope] | None
    """Those that may use it, besides ``admin``; None: anybody."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Descriptions of the query's parameters, by name."""
    body: tuple[str, ...] = ()
    """Media types of the request."""
    success: str = "200"
    answers: tuple[str, ...] = (_JSON,)
    """Media types of the answer."""
    is_loaded: bool = False
    """Whether it can be refused for its size, or for the server's load."""
    is_cross_origin: bool = False
    """Whether pages of other sites may use it."""
    is_page: bool = False
    """Whether people read it: refusals are pages, too, and the cookie of a sign-in is a token."""

    @property
    def template(self) -> str:
        """The path as OpenAPI has it: without which text a parameter may have."""
        return self.path.replace(":path}", "}")


def with_token(endpoint: Endpoint) -> tuple[Endpoint, Endpoint]:
    """Return an address without and with a token in it, for clients that send no header."""
    return endpoint, replace(endpoint, path=f"/{{token}}{endpoint.path}")
