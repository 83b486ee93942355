"""Chunks of files that clients send before they name the files, by their SHA-1.

The folder ``chunks`` of a warehouse has a file for each, and for each file that was assembled a
line of JSON about its images, so that it is not sent again.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from hashlib import sha1
from pathlib import Path
from threading import Lock
from typing import Any

from machtrace.atomic_write import replace_file
from machtrace.server.bodies import write_parts
from machtrace.server.limits import BAD_REQUEST, TOO_LARGE, UNAVAILABLE, Limits, RefusedError

CHUNK_BYTES = 8 << 20
"""The size of each chunk of a file but the last."""
DIGEST = re.compile(r"[0-9a-f]{40}")
_FOLDER = "chunks"
_ANSWER = ".json"
_ANSWER_TIME = 90 * 86_400.0


class Chunks:
    """The chunks of a warehouse. Several threads may use it."""

    def __init__(self, warehouse: Path, limits: Limits) -> None:
        """Read nothing yet; the folder is made when there is a chunk."""
        self._folder = warehouse / _FOLDER
        self._limits = limits
        self._lock = Lock()

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Return those without a file, each once and in order; the others stay for some time."""
        missing = []
        for digest in dict.fromkeys(digests):
            try:
                os.utime(self._folder / digest)
            except OSError:
                missing.append(digest)
        return missing

    def put(self, chunks: Iterable[tuple[str, bytes]]) -> None:
        """Store chunks with their SHA-1.

        Raises:
            RefusedError: a SHA-1 is another, or there are too many chunks already.
            OSError: they cannot be stored.
        """
        with self._lock:
            self._folder.mkdir(exist_ok=True)
            number, size = self._remove_old()
            for digest, data in chunks:
                _check(digest, data)
                number += 1
                size += len(data)
                if number > self._limits.chunks or size > self._limits.chunks_bytes:
                    raise RefusedError(UNAVAILABLE, "too many chunks wait", retry_after=60)
                part = self._folder / f"{digest}.part"
                with part.open("wb") as file:
                    write_parts(file, [data], self._limits)
                part.replace(self._folder / digest)

    def assemble(self, digests: Sequence[str], whole: str, path: Path) -> None:
        """Write the file that chunks are.

        Args:
            digests: of its chunks, in order.
            whole: the SHA-1 of the file.
            path: the new file.

        Raises:
            RefusedError: it exceeds a limit, or its SHA-1 is another.
            OSError: a chunk is missing.
        """
        digest = sha1(usedforsecurity=False)
        size = 0
        with path.open("xb") as file:
            for each in digests:
                data = (self._folder / each).read_bytes()
                size += len(data)
                if size > self._limits.symbols_bytes:
                    most = self._limits.symbols_bytes
                    raise RefusedError(TOO_LARGE, f"the file is larger than {most} bytes")
                digest.update(data)
                write_parts(file, [data], self._limits)
        if digest.hexdigest() != whole:
            raise RefusedError(BAD_REQUEST, "the file's SHA-1 is not the one that was stated")

    def answer(self, whole: str) -> dict[str, Any] | None:
        """Return what was stored about an assembled file by its SHA-1; None if it is unknown."""
        try:
            answer = json.loads((self._folder / f"{whole}{_ANSWER}").read_bytes())
        except (OSError, ValueError):
            return None
        return answer if isinstance(answer, dict) else None

    def store_answer(self, whole: str, answer: dict[str, Any]) -> None:
        """Store what is to be known about an assembled file.

        Raises:
            FileAccessError: it cannot be stored.
        """
        replace_file(str(self._folder / f"{whole}{_ANSWER}"), [json.dumps(answer).encode()])

    def _remove_old(self) -> tuple[int, int]:
        """Remove what nobody mentioned for long; return the number of chunks and their bytes."""
        now = time.time()
        number = size = 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                is_answer = entry.name.endswith(_ANSWER)
                age = _ANSWER_TIME if is_answer else self._limits.chunk_time
                if now - status.st_mtime > age:
                    Path(entry.path).unlink(missing_ok=True)
                elif not is_answer:
                    number += 1
                    size += status.st_size
        return number, size


class Assembly:
    """The files that are assembled from chunks, one at a time; for one event loop."""

    def __init__(self, warehouse: Path, limits: Limits) -> None:
        self.chunks = Chunks(warehouse, limits)
        self.turn = asyncio.Semaphore()
        self.tasks: dict[str, asyncio.Task[dict[str, Any]]] = {}
        """By the SHA-1 of the file."""


def _check(digest: str, data: bytes) -> None:
    if len(data) > CHUNK_BYTES:
        raise RefusedError(TOO_LARGE, f"a chunk is larger than {CHUNK_BYTES} bytes")
    if not DIGEST.fullmatch(digest) or sha1(data, usedforsecurity=False).hexdigest() != digest:
        raise RefusedError(BAD_REQUEST, "the name of a chunk is not its SHA-1")
