"""The parts of a server that its requests share, and the permission of a request."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Timer
from typing import TypeVar
from urllib.parse import urlsplit

from starlette.requests import Request

from machtrace.errors import FileAccessError
from machtrace.server.browser import cookie_token, is_embedded, is_of_own_page
from machtrace.server.chunks import Assembly
from machtrace.server.envelopes import envelope_key
from machtrace.server.jobs import Jobs
from machtrace.server.limits import (
    FORBIDDEN,
    MISDIRECTED,
    TIMEOUT,
    UNAUTHORIZED,
    UNAVAILABLE,
    Limits,
    Memory,
    RefusedError,
)
from machtrace.server.tokens import AdministrationLog, Scope, Tokens
from machtrace.server.writer import Writer
from machtrace.symbolizer.report_names import ReportNames
from machtrace.symbolstore.store import SymbolStore
from machtrace.warehouse.warehouse import Warehouse

_T = TypeVar("_T")
_OTHER_SITE = "a page of another site cannot use this server"
_CREATE = "create one: machtrace serve FOLDER --new-token SCOPE"


class Service:
    """A warehouse that is served."""

    def __init__(
        self,
        folder: Path,
        limits: Limits | None = None,
        *,
        is_local: bool,
        has_otlp: bool = False,
    ) -> None:
        """Open it; nothing is written before :attr:`writer` starts.

        Args:
            folder: the warehouse.
            limits: None for the usual ones.
            is_local: whether only programs of this machine can connect, so that a warehouse without
                tokens is open.
            has_otlp: whether it receives profiles of OpenTelemetry, whose protocol may change.

        Raises:
            FileAccessError, FormatError: the folder is no warehouse, or cannot be read.
        """
        Warehouse(folder).close()
        self.folder = folder
        self.limits = limits or Limits()
        self.is_local = is_local
        self.has_otlp = has_otlp
        self.tokens = Tokens(folder)
        self.log = AdministrationLog(folder)
        self.memory = Memory(self.limits.memory_bytes)
        self.writer = Writer(folder, self.limits)
        self.store = SymbolStore(folder / "symbols")
        self.jobs = Jobs()
        self.assembly = Assembly(folder, self.limits)
        self.forms = asyncio.Semaphore()
        """For forms whose sender is known at their end."""
        self.answers: Counter[tuple[str, int]] = Counter()
        """By path and status."""
        try:
            self.store.root.mkdir(exist_ok=True)
        except OSError as error:
            raise FileAccessError(
                str(self.store.root), error.strerror or "cannot be written"
            ) from None
        self._names_lock = Lock()
        self._names: ReportNames | None = None
        self._queries = asyncio.Semaphore(self.limits.queries)

    def authorise(
        self, request: Request, scopes: frozenset[Scope], *, is_cross_origin: bool = False
    ) -> str:
        """Return the token of a request that may do what ``scopes`` permit; empty without tokens.

        The cookie of a sign-in is a token for the pages of this server alone.

        Args:
            request: the request.
            scopes: those that may do it, besides ``admin``.
            is_cross_origin: whether pages of other sites may.

        Raises:
            RefusedError: it may not.
        """
        if self.tokens.is_open:
            if not self.is_local:
                raise RefusedError(UNAUTHORIZED, "the server has no tokens", remedy=_CREATE)
            # A page of another site can resolve its own name to this machine.
            if not _is_local(request.url.hostname or ""):
                raise RefusedError(
                    MISDIRECTED, "a server without tokens is used by localhost alone"
                )
            origin = request.headers.get("origin")
            if origin and not is_cross_origin and not _is_local(urlsplit(origin).hostname or ""):
                raise RefusedError(FORBIDDEN, _OTHER_SITE)
            if not is_cross_origin and is_embedded(request):
                raise RefusedError(FORBIDDEN, _OTHER_SITE)
            return ""
        token = _token(request, is_ingest=Scope.INGEST in scopes)
        if not token and not is_cross_origin and (token := cookie_token(request)):
            is_own = request.method in ("GET", "HEAD") and not is_embedded(request)
            if not is_own and not is_of_own_page(request):
                raise RefusedError(FORBIDDEN, _OTHER_SITE)
        self.authorise_token(token, scopes)
        return token

    def authorise_token(self, token: str, scopes: frozenset[Scope]) -> None:
        """Check that a token permits something.

        Args:
            token: the token.
            scopes: those that permit it, besides ``admin``.

        Raises:
            RefusedError: it does not.
        """
        scope = self.tokens.scope(token) if token else None
        if scope is None:
            raise RefusedError(UNAUTHORIZED, "a valid token is required", remedy=_CREATE)
        if scope is not Scope.ADMIN and scope not in scopes:
            wanted = " or ".join(sorted(scopes | {Scope.ADMIN}))
            raise RefusedError(
                FORBIDDEN, f"the token's scope is {scope}, not {wanted}", remedy=_CREATE
            )

    async def reading(self, work: Callable[[Warehouse], _T], *, is_query: bool = True) -> _T:
        """Return what ``work`` makes of the warehouse, in another thread.

        Args:
            work: reads only.
            is_query: whether it may take long: it is interrupted then, and few run at a time.

        Raises:
            RefusedError: it takes too long, or too many run already.
            MachtraceError: those of ``work``.
        """
        read = self._read_in_time if is_query else self._read
        if not is_query:
            return await asyncio.to_thread(self._again, read, work)
        if self._queries.locked():
            raise RefusedError(UNAVAILABLE, "too many queries at a time", retry_after=2)
        async with self._queries:
            return await asyncio.to_thread(self._again, read, work)

    @property
    def problems(self) -> list[str]:
        """Faults that somebody has to mend, though the server receives and writes."""
        tokens = self.tokens.problem
        return [*([tokens] if tokens else ()), *self.writer.problems]

    def forget_names(self) -> None:
        """Search for symbols again, since there are new ones."""
        with self._names_lock:
            self._names = None

    @contextmanager
    def names(self) -> Iterator[ReportNames]:
        """Return the names of the stored symbols, for one thread at a time."""
        with self._names_lock:
            if self._names is None:
                self._names = ReportNames([self.store.root])
            yield self._names

    def _again(
        self, read: Callable[[Callable[[Warehouse], _T]], _T], work: Callable[[Warehouse], _T]
    ) -> _T:
        """Read, and once more if files were deleted meanwhile."""
        deletions = self.writer.deletions
        try:
            return read(work)
        except RefusedError:
            raise
        except Exception:
            if self.writer.deletions == deletions and not deletions % 2:
                raise
        return read(work)

    def _read(self, work: Callable[[Warehouse], _T]) -> _T:
        with Warehouse(self.folder) as warehouse:
            return work(warehouse)

    def _read_in_time(self, work: Callable[[Warehouse], _T]) -> _T:
        seconds = self.limits.query_time
        with Warehouse(self.folder) as warehouse:
            is_over = False

            def interrupt() -> None:
                nonlocal is_over
                is_over = True
                warehouse.interrupt()

            timer = Timer(seconds, interrupt)
            timer.start()
            try:
                return work(warehouse)
            except Exception:
                if is_over:
                    raise RefusedError(
                        TIMEOUT, f"it takes longer than {seconds:g} seconds"
                    ) from None
                raise
            finally:
                timer.cancel()


def _token(request: Request, *, is_ingest: bool) -> str:
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if "token" in request.path_params:
        return str(request.path_params["token"])
    if not is_ingest:
        return ""
    # Clients of other systems have an address to configure, and no header.
    return (
        envelope_key(request.headers.get("x-sentry-auth", ""))
        or request.query_params.get("sentry_key", "")
        or request.query_params.get("token", "")
    )


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
