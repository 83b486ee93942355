"""Limits of a server, and the refusals that state them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from machtrace.errors import MachtraceError
from machtrace.frozen import dataclass

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 400, 401, 403, 404
TIMEOUT, TOO_LARGE, UNSUPPORTED, MISDIRECTED = 408, 413, 415, 421
TOO_MANY, UNAVAILABLE, DISK_FULL = 429, 503, 507


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a server. Sizes are in bytes, times in seconds."""

    packed_bytes: int = 64 << 20
    """A body of reports, as it is sent."""
    unpacked_bytes: int = 256 << 20
    """A body of reports, decompressed."""
    ratio: int = 200
    """Maximum expansion of a body beyond 1 MiB."""
    parts: int = 1000
    """Parts of a multipart body, or items of an envelope."""
    memory_bytes: int = 512 << 20
    """All bodies that are being received."""
    unread_bytes: int = 8 << 30
    """Bytes of the log that are in no segment yet."""
    free_bytes: int = 64 << 20
    """Space on the disk below which nothing is accepted."""
    symbols_bytes: int = 8 << 30
    """A file of symbols, as it is sent."""
    unpacked_symbols_bytes: int = 32 << 30
    """All members of an archive of symbols."""
    chunks: int = 20_000
    """Parts of files of symbols that wait for the others."""
    chunks_bytes: int = 16 << 30
    """All of them."""
    chunk_time: float = 3600
    """The time for which a chunk waits after it was last mentioned."""
    question_bytes: int = 16 << 20
    """A query, or a request for names."""
    body_time: float = 120
    """A body of reports, from its first byte to its last."""
    symbols_time: float = 3600
    reader_time: float = 120
    """Reading some reports, each of them if that was not enough."""
    query_time: float = 30
    query_memory: int = 2 << 30
    """Memory of a query, besides that of an idle process; an eighth of the machine's if that is
    less."""
    query_spill: int = 2 << 30
    """Space on the disk for what does not fit into a query's memory; a sixteenth of what is free
    at the start if that is less."""
    queries: int = 4
    """Queries and conditions of clients at a time."""
    pages: int = 4
    """Other pages and answers at a time."""
    waiting_pages: int = 64
    """Those that wait for their turn."""
    idle_time: float = 300
    """The time after which a process without a task ends."""
    rows: int = 100_000
    """Rows of an answer."""
    answer_bytes: int = 64 << 20
    sending_bytes: int = 256 << 20
    """All large answers that are being sent."""
    sending_time: float = 600
    """Sending an answer."""
    frames: int = 1_000_000
    """Frames of a request for names."""
    linger: float = 0.5
    """The time in which more reports are awaited before a segment is made."""
    raw_age: float | None = None
    """The age at which the bytes of reports are deleted; None: never."""
    report_age: float | None = None
    """The age at which reports are deleted."""
    trust_clock: bool = False
    """Whether to delete more than half, and when nothing came for a month until now."""
    segments: int = 64
    """Segments that are not joined into larger ones."""


class RefusedError(MachtraceError):
    """A request that is not answered, with its HTTP status."""

    remedy = "see docs/server.md"

    retry_after: int | None = None

    def __init__(
        self, status: int, fact: str, *, remedy: str | None = None, retry_after: int | None = None
    ) -> None:
        """State why.

        Args:
            status: the HTTP status.
            fact: the reason.
            remedy: what the client can do.
            retry_after: in seconds, if the same request may succeed later.
        """
        super().__init__(fact, remedy=remedy)
        self.status = status
        if retry_after is not None:
            self.retry_after = retry_after


class Memory:
    """Bytes for all requests together. Several threads may use it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self.used = 0
        """In bytes."""

    @contextmanager
    def reservation(self) -> Iterator[Reservation]:
        """Return a reservation, which is released at the end."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            self.take(-reservation.size)

    def take(self, size: int) -> None:
        """Take bytes, or give them back.

        Raises:
            RefusedError: the limit is exceeded.
        """
        with self._lock:
            if size > 0 and self.used + size > self._limit:
                raise RefusedError(TOO_MANY, "too many requests at a time", retry_after=1)
            self.used += size


class Reservation:
    """Bytes of one request."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.size = 0
        """In bytes."""

    def grow(self, size: int) -> None:
        """Take more bytes.

        Raises:
            RefusedError: the limit of all requests is exceeded.
        """
        self._memory.take(size)
        self.size += size
