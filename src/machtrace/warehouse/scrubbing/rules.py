"""The rules of scrubbing: a TOML file in the warehouse's folder, ``scrub.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from machtrace.atomic_write import replace_file
from machtrace.errors import FileAccessError, FormatError, MissingExtraError
from machtrace.frozen import dataclass
from machtrace.warehouse.scrubbing.finders import FINDERS

RULES = "scrub.toml"
DEFAULT_RULES = """\
# Personal data that machtrace overwrites in reports before it stores them: docs/warehouse.md
version = 1

# user-folders: the name in /Users/NAME, /home/NAME and C:\\Users\\NAME
# containers: the UUID of an app's installation, in /var/mobile/Containers/Data/Application/UUID
# email, ip: addresses, wherever they are
mask = ["user-folders", "containers", "email", "ip"]

# Values that are replaced by a hash that only this folder can make: keys of JSON, and words before
# a colon at the beginning of a line. "a.b" is b anywhere within a.
hash = ["crashReporterKey", "CrashReporter Key", "device_app_hash", "user.id"]

# Values that are overwritten.
remove = [
    "deviceName", "device_name", "server_name", "Hostname",
    "user.email", "user.ip_address", "user.name", "user.username", "device.name",
]

# Regular expressions as RE2 has them, without lookaround and references. Their first group is
# overwritten, or all that they match without one.
patterns = []
"""
_LISTS = ("mask", "hash", "remove", "patterns")
_VERSION = 1
_MAX_INSTRUCTIONS = 1000
"""Instructions of a compiled pattern: each may be run for each byte."""
_MAX_SHOWN = 60
"""Characters of a pattern in a message."""


class Match(Protocol):
    """A match of a pattern."""

    def span(self, group: int, /) -> tuple[int, int]:
        """Return where a group is."""
        ...


class Pattern(Protocol):
    """A compiled pattern, which searches in a time that is linear in the text."""

    @property
    def groups(self) -> int:
        """The number of groups."""
        ...

    def finditer(self, text: bytes, /) -> Iterator[Match]:
        """Yield the matches."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of scrubbing; see :data:`DEFAULT_RULES`."""

    mask: tuple[str, ...] = ()
    hash: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    patterns: tuple[Pattern, ...] = ()


def parse_rules(data: bytes, source: str) -> Rules:
    """Return the rules of a file.

    Raises:
        FormatError: it is no TOML, of a later version, or has what is no rule.
        MissingExtraError: it has patterns, and RE2 is not installed.
    """

    def fail(text: str) -> FormatError:
        remedy = "correct it; docs/warehouse.md describes the rules"
        return FormatError(text, source=source, offset=0, remedy=remedy)

    try:
        table = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise fail(f"not TOML: {error}") from None
    if table.pop("version", None) != _VERSION:
        raise fail(f"the version of the rules is not {_VERSION}")
    unknown = sorted(table.keys() - set(_LISTS))
    if unknown:
        raise fail(f"no rule is called {unknown[0]!r}")
    lists = {name: table.get(name, []) for name in _LISTS}
    for name, values in lists.items():
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise fail(f"{name!r} is no list of texts")
        if "" in values:
            raise fail(f"number {values.index('') + 1} of {name!r} is empty")
    unknown = [name for name in lists["mask"] if name not in FINDERS]
    if unknown:
        raise fail(f"{unknown[0]!r} is none of {', '.join(FINDERS)}")
    try:
        patterns = _compiled(lists.pop("patterns"))
    except ValueError as error:
        raise fail(str(error)) from None
    texts = {name: tuple(values) for name, values in lists.items()}
    return Rules(patterns=patterns, **texts)


def _compiled(texts: Sequence[str]) -> tuple[Pattern, ...]:
    """Return compiled patterns.

    Raises:
        ValueError: one is invalid.
    """
    if not texts:
        return ()
    try:
        import re2
    except ImportError:
        raise MissingExtraError("patterns of scrubbing", extra="warehouse") from None
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes
    options.log_errors = False
    patterns: list[Pattern] = []
    for number, text in enumerate(texts, 1):
        shown = f"pattern {number}, {_shortened(repr(text))},"
        try:
            pattern = re2.compile(text.encode(), options)
        except re2.error as error:
            reason = error.args[0] if error.args else error
            reason = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason
            raise ValueError(f"{shown} is invalid in RE2: {_shortened(str(reason))}") from None
        if pattern.programsize > _MAX_INSTRUCTIONS:
            raise ValueError(f"{shown} is too large: use smaller repetitions, or several patterns")
        patterns.append(pattern)
    return tuple(patterns)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def read_rules(folder: Path) -> Rules | None:
    """Return the rules of a warehouse; None if it has none.

    Raises:
        FileAccessError: the file cannot be read.
        FormatError: it has no rules.
    """
    path = folder / RULES
    try:
        return parse_rules(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileAccessError(str(path), error.strerror or str(error)) from None


def write_default_rules(folder: Path) -> None:
    """Give a warehouse the usual rules, if it has none.

    Raises:
        FileAccessError: they cannot be written.
    """
    path = folder / RULES
    if not path.exists():
        replace_file(str(path), [DEFAULT_RULES.encode()])
