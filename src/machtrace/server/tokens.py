"""Tokens of clients: ``mt_<scope>_<random>``, of which hashes are stored.

The file ``tokens`` in a warehouse has a line of JSON for each. A token is revoked by deleting its
line. The hash is SHA-256 without a salt: a token is 256 random bits, which nobody can guess.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from threading import Lock

from machtrace.errors import FileAccessError, FormatError

_FILE = "tokens"
_LOG = "administration.log"


class Scope(StrEnum):
    """The permission of a token."""

    INGEST = "ingest"
    """Send reports."""
    SYMBOLS = "symbols"
    """Send symbols, and see which are missing."""
    READ = "read"
    """Query."""
    ADMIN = "admin"
    """All of these, and the log of administration."""


class Tokens:
    """The tokens of a warehouse, as its file has them now."""

    def __init__(self, folder: Path) -> None:
        """Read them.

        Raises:
            FileAccessError, FormatError: the file cannot be read.
        """
        self._path = folder / _FILE
        self._state: tuple[int, ...] = ()
        self._hashes: list[tuple[str, Scope]] = []
        self._lock = Lock()
        self._refresh()

    def __len__(self) -> int:
        self._refresh()
        return len(self._hashes)

    def scope(self, token: str) -> Scope | None:
        """Return the scope of a token; None if it is invalid."""
        self._refresh()
        digest = _hash(token)
        scope = None
        for known, own in self._hashes:  # all of them, so that the time is the same for any
            if hmac.compare_digest(known, digest):
                scope = own
        return scope

    def create(self, scope: Scope) -> str:
        """Return a new token, which is stored nowhere but in the answer.

        Raises:
            FileAccessError: it cannot be stored.
        """
        token = f"mt_{scope}_{secrets.token_hex(32)}"
        row = {"scope": scope.value, "sha256": _hash(token), "created": _now()}
        _append(self._path, row)
        return token

    def _refresh(self) -> None:
        """Read the file again if it has changed."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._state, self._hashes = (), []
            return
        except OSError as error:
            raise FileAccessError(str(self._path), error.strerror or str(error)) from None
        state = (status.st_ino, status.st_size, status.st_mtime_ns)
        with self._lock:
            if state != self._state:
                self._hashes, self._state = self._read(), state

    def _read(self) -> list[tuple[str, Scope]]:
        try:
            rows = [json.loads(line) for line in self._path.read_bytes().splitlines() if line]
            return [(str(row["sha256"]), Scope(row["scope"])) for row in rows]
        except OSError as error:
            raise FileAccessError(str(self._path), error.strerror or str(error)) from None
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(
                f"not a list of tokens: {error}",
                source=str(self._path),
                offset=0,
                remedy="delete the line that is damaged; create another token",
            ) from None


class AdministrationLog:
    """The actions on a warehouse, and who did them: a line of JSON for each."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _LOG

    def add(self, action: str, **facts: object) -> None:
        """Add an action.

        Raises:
            FileAccessError: it cannot be stored.
        """
        _append(self._path, {"time": _now(), "action": action, **facts})

    def read(self, most: int = 1 << 20) -> bytes:
        """Return the last lines, of ``most`` bytes together."""
        try:
            with self._path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(size - most, 0))
                data = file.read(most)
        except FileNotFoundError:
            return b""
        return data if size <= most else data.partition(b"\n")[2]


def token_name(token: str) -> str:
    """Return by what a log names a token: its scope, and the start of its hash."""
    return f"{token.split('_')[1]}-{_hash(token)[:8]}" if token.count("_") > 1 else ""


def _hash(token: str) -> str:
    return sha256(token.encode("utf-8", "replace")).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _append(path: Path, row: Mapping[str, object]) -> None:
    line = json.dumps(row).encode() + b"\n"
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, line)
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        raise FileAccessError(str(path), error.strerror or str(error)) from None
