"""Tokens of clients: ``mt_<scope>_<random>``, of which hashes are stored.

The file ``tokens`` in a warehouse has a line of JSON for each. A token is revoked by deleting its
line. The hash is SHA-256 without a salt: a token is 256 random bits, which nobody can guess.

A warehouse that has had a token is closed for good, whatever becomes of the file: another file,
``tokens.required``, states that it had one.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import stat
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from threading import Lock

from machtrace.atomic_write import replace_file
from machtrace.errors import FileAccessError, FormatError, MachtraceError
from machtrace.model.text import counted

_FILE = "tokens"
_MARK = "tokens.required"
_MARK_TEXT = b"""\
This warehouse has had tokens: without any, its server lets nobody in.
To open it to all programs of its machine, stop the server; delete this file and the file tokens.
"""
_DIGEST = re.compile("[0-9a-f]{64}")
_NOBODY = "nobody gets in"
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
    """The tokens of a warehouse, as its file has them now.

    A file that is damaged or cannot be read leaves those that it had before valid.
    """

    def __init__(self, folder: Path) -> None:
        """Read them.

        Raises:
            FileAccessError, FormatError: the file cannot be read.
        """
        self._path = folder / _FILE
        self._mark = folder / _MARK
        self._had_any = _is_there(self._mark)
        self._state: tuple[int, ...] = ()
        self._damage = ""
        """Why the file of that state is no list of tokens; empty if it is one."""
        self._hashes: list[tuple[str, Scope]] = []
        self._problem = ""
        self._lock = Lock()
        with self._lock:
            try:
                self._problem = self._read_again()
            finally:
                self._require()

    def __len__(self) -> int:
        self._refresh()
        return len(self._hashes)

    @property
    def is_open(self) -> bool:
        """Whether there was never a token."""
        self._refresh()
        return not self._had_any

    @property
    def problem(self) -> str:
        """Why the file is not as it should be; empty if it is."""
        self._refresh()
        return self._problem

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
        self._had_any = True  # in this process even if it cannot be stored
        self._require()
        _append(self._path, row)
        return token

    def _refresh(self) -> None:
        """Read the file again if it has changed."""
        with self._lock:
            before = self._problem
            try:
                self._problem = self._read_again()
            except MachtraceError as error:
                reason = error.reason if isinstance(error, FileAccessError) else self._damage
                left = counted(len(self._hashes), "earlier token")
                self._problem = f"the file {_FILE} cannot be read, {reason}; in use: {left}"
            try:
                self._require()
            except FileAccessError as error:
                self._problem = self._problem or f"no file {_MARK}, {error.reason}"
            if self._problem not in ("", before):
                sys.stderr.write(f"machtrace: {self._problem}\n")

    def _read_again(self) -> str:
        """Read the file if it has changed, and return what is wrong.

        Raises:
            FileAccessError, FormatError: it cannot be read, and nothing has changed.
        """
        if not _is_there(self._path):
            self._state, self._hashes = (), []
            return f"the file {_FILE} is missing: {_NOBODY}" if self._had_any else ""
        self._had_any = True
        try:
            status = self._path.stat()
        except FileNotFoundError:  # such as a secret that is not mounted
            self._state, self._hashes = (), []
            return f"the file {_FILE} is a link to no file: {_NOBODY}"
        except OSError as error:
            raise FileAccessError(str(self._path), error.strerror or str(error)) from None
        # The time of the last change of status is another one after chmod.
        state = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if state != self._state:
            hashes, self._damage = self._read(status)
            self._hashes = self._hashes if self._damage else hashes
            self._state = state
        if self._damage:
            raise FormatError(
                f"not a list of tokens, {self._damage}",
                source=str(self._path),
                offset=0,
                remedy="delete the line that is damaged; create another token",
            )
        return "" if self._hashes else f"the file {_FILE} has no token: {_NOBODY}"

    def _read(self, status: os.stat_result) -> tuple[list[tuple[str, Scope]], str]:
        """Return the tokens of the file, and what is damaged.

        Raises:
            FileAccessError: it cannot be read.
        """
        if not stat.S_ISREG(status.st_mode):
            return [], "it is no regular file"
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError as error:
            raise FileAccessError(str(self._path), error.strerror or str(error)) from None
        hashes: list[tuple[str, Scope]] = []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line) if line.strip() else None
                if row is not None:
                    hashes.append((_digest(row["sha256"]), Scope(row["scope"])))
            except (ValueError, KeyError, TypeError, RecursionError):
                return [], f"line {number} is damaged"
        return hashes, ""

    def _require(self) -> None:
        """Store that there was a token, if there was one, also when that was deleted.

        Raises:
            FileAccessError: it cannot be stored.
        """
        if self._had_any and not _is_there(self._mark):
            replace_file(str(self._mark), [_MARK_TEXT])


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


def _is_there(path: Path) -> bool:
    """Whether there is a file of any kind, also a link to nothing.

    Raises:
        FileAccessError: nobody knows.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise FileAccessError(str(path), error.strerror or str(error)) from None
    return True


def _digest(value: object) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ValueError(value)
    return value


def _hash(token: str) -> str:
    return sha256(token.encode("utf-8", "replace")).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _append(path: Path, row: Mapping[str, object]) -> None:
    line = json.dumps(row).encode() + b"\n"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(file).st_size
            # An editor may leave out the end of the last line, and a full disk may cut it off.
            is_cut = size > 0 and os.pread(file, 1, size - 1) != b"\n"
            os.write(file, b"\n" + line if is_cut else line)
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        raise FileAccessError(str(path), error.strerror or str(error)) from None
