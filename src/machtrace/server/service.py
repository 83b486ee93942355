"""The parts of a server that its requests share, and the permission of a request."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.requests import Request

from machtrace.errors import FileAccessError, MachtraceError
from machtrace.server.browser import cookie_token, is_embedded, is_of_own_page
from machtrace.server.chunks import Assembly
from machtrace.server.envelopes import envelope_key
from machtrace.server.limits import (
    FORBIDDEN,
    MISDIRECTED,
    NOT_FOUND,
    UNAUTHORIZED,
    UNAVAILABLE,
    Limits,
    Memory,
    RefusedError,
)
from machtrace.server.queries import QueryPool, run_for
from machtrace.server.query_process import QueryLimits, Task
from machtrace.server.tokens import AdministrationLog, Scope, Tokens
from machtrace.server.writer import Writer
from machtrace.symbolizer.report_names import ReportNames
from machtrace.symbolstore.store import SymbolStore
from machtrace.warehouse.spills import remove_spills
from machtrace.warehouse.warehouse import Warehouse

# --- Requests whose answers come later: each is given once, to the token that sent the request ---

_MAX_JOBS = 200
"""Jobs that run, or whose answer nobody collected yet."""
_RETRY_AFTER = 30
_FORGET_AFTER = 90.0
"""Seconds for which an answer waits."""


class _Job(NamedTuple):
    task: asyncio.Task[dict[str, Any]]
    token: str


class Jobs:
    """Work in another thread, in sequence, for requests of one event loop."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        # Not in the threads of other requests, all of which would wait for these.
        self._threads = ThreadPoolExecutor(1, "machtrace-names")

    def close(self) -> None:
        """Begin no other job."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def start(self, work: Callable[[], dict[str, Any]], token: str) -> str:
        """Begin, and return an identifier.

        Args:
            work: returns an answer without its status.
            token: the token of the request; others do not get the answer.

        Raises:
            RefusedError: too many jobs run.
        """
        if len(self._jobs) >= _MAX_JOBS:
            raise RefusedError(UNAVAILABLE, "too many requests at a time", retry_after=_RETRY_AFTER)
        name = str(uuid4())
        task = asyncio.create_task(self._answer(work))
        self._jobs[name] = _Job(task, token)
        loop = asyncio.get_running_loop()
        task.add_done_callback(lambda _: loop.call_later(_FORGET_AFTER, self._jobs.pop, name, None))
        return name

    async def answer(self, name: str, token: str, seconds: float | None) -> dict[str, Any]:
        """Return the answer, or that it is pending.

        Args:
            name: the identifier.
            token: that of the request.
            seconds: the time to wait; None: until it is there.

        Raises:
            RefusedError: there is no such job, or its answer was given.
        """
        job = self._jobs.get(name)
        if job is None or job.token != token:
            raise RefusedError(NOT_FOUND, "there is no such request")
        done, _ = await asyncio.wait([job.task], timeout=seconds)
        if not done:
            return {"status": "pending", "request_id": name, "retry_after": _RETRY_AFTER}
        self._jobs.pop(name, None)
        return job.task.result()

    async def _answer(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        try:
            return {"status": "completed", **await loop.run_in_executor(self._threads, work)}
        except MachtraceError as error:
            return {"status": "failed", "message": str(error)}
        except Exception as error:  # noqa: BLE001 - a client gets an answer, and no traceback
            sys.stderr.write(f"machtrace: {type(error).__name__}: {error}\n")
            return {"status": "internal_error"}


# --- The parts of a server that its requests share, and the permission of a request ---

_T = TypeVar("_T")
_NICENESS = 10
"""The priority of processes with SQL of clients, as ``nice`` counts it."""
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
        self.sending = Memory(self.limits.sending_bytes)
        """The answers that are being sent."""
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
        self.queries = self._pool(self.limits.queries, 0, _NICENESS)
        """Conditions and queries of clients."""
        self.pages = self._pool(self.limits.pages, self.limits.waiting_pages, 0)
        """All other tasks."""

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

    async def reading(
        self, request: Request, work: Callable[..., _T], *arguments: object, has_sql: bool = False
    ) -> _T:
        """Return what ``work`` makes of the warehouse and arguments, in another process.

        Args:
            request: the one that is answered; its body was read.
            work: a function of a module, which reads only.
            arguments: its further ones.
            has_sql: whether they have a condition or a query of the client.

        Raises:
            RefusedError: it takes too long or too much memory, too many run already, or the client
                has left.
            MachtraceError: those of ``work``.
        """
        pool = self.queries if has_sql else self.pages
        task = Task(work, arguments)
        deletions = self.writer.deletions
        try:
            return cast("_T", await run_for(request, pool, task))
        except RefusedError:
            raise
        except Exception:
            # Files were deleted meanwhile.
            if self.writer.deletions == deletions and not deletions % 2:
                raise
        return cast("_T", await run_for(request, pool, task))

    async def performing(self, work: Callable[[Warehouse], _T]) -> _T:
        """Return what ``work`` makes of the warehouse, in another thread; it computes nothing."""

        def perform() -> _T:
            with Warehouse(self.folder) as warehouse:
                return work(warehouse)

        return await asyncio.to_thread(perform)

    def begin(self) -> None:
        """Accept requests in the running event loop; the writer is open."""
        self.writer.begin()
        remove_spills(self.folder)

    def stop(self) -> None:
        """Refuse what is computed."""
        for pool in (self.queries, self.pages):
            pool.stop()

    def close(self) -> None:
        """End what computes."""
        for pool in (self.queries, self.pages):
            pool.close()
        remove_spills(self.folder)

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

    def _pool(self, processes: int, waiting: int, niceness: int) -> QueryPool:
        limits = self.limits
        own = QueryLimits(
            folder=self.folder,
            seconds=limits.query_time,
            memory=min(limits.query_memory, _machine_memory() // 8),
            spill=min(limits.query_spill, shutil.disk_usage(self.folder).free // 16),
            answer=limits.answer_bytes,
            niceness=niceness,
        )
        return QueryPool(own, processes, waiting, limits.idle_time)


def _machine_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30


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
