"""Personal data in received bytes is overwritten in place.

What replaces a value has its length, so that every format stays readable: lengths in binary
formats, columns of texts, offsets. Archives are unpacked and packed again; the checksums of
spools are corrected.
"""

from __future__ import annotations

import codecs
import os
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from machtrace.errors import FileAccessError, FormatError
from machtrace.reports.inputs import InputLimits, unpacked
from machtrace.reports.source import ReportSource
from machtrace.reports.spool.records import MAGIC, restore_checksums
from machtrace.warehouse.ingest import Body
from machtrace.warehouse.scrubbing.finders import FINDERS, Field
from machtrace.warehouse.scrubbing.rules import Rules, read_rules

KEY = "scrub.key"
_KEY_BYTES = 32
_UNPACKED = InputLimits(file_bytes=1 << 28, total_bytes=1 << 28)
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_OPENING = (b"{", b"[")
_HEX = b"0123456789abcdef"
_ASCII = range(128)
_STAY = b"-_.:@ "
"""Signs of a value that stay when it is hashed."""
_LETTERS = frozenset(byte for byte in range(256) if byte not in _ASCII or chr(byte).isalpha())
_DIGITS = frozenset(b"0123456789")
# A backslash belongs to a letter behind it.
_MASKED = bytes(
    ord("0") if byte in _DIGITS else ord("x") if byte in _LETTERS or byte == ord("\\") else byte
    for byte in range(256)
)
"""Digits become 0, letters x, and signs stay."""
_HIDDEN = bytes(ord("0") if byte in _DIGITS else ord("x") for byte in range(256))
"""Digits become 0, and all else x."""


class Edit(NamedTuple):
    """Bytes that are overwritten."""

    start: int
    end: int
    rule: str
    before: bytes
    text: bytes
    """It has the same length."""


class Scrubber:
    """Overwrites what rules select."""

    def __init__(self, rules: Rules, key: bytes) -> None:
        """Compile the rules.

        Args:
            rules: what is overwritten.
            key: makes hashes that nobody without it can compare with known values.
        """
        self._rules = rules
        self._key = key
        self._hash = [(name, Field(name)) for name in rules.hash]
        self._remove = [(name, Field(name)) for name in rules.remove]

    def scrub(self, body: Body) -> Body:
        """Return received bytes without what the rules select. Raises nothing."""
        return body._replace(name=self._label(body.name), data=self._scrubbed(body.data))

    def edits(self, data: bytes) -> list[Edit]:
        """Return what is overwritten in a file that is no archive, in order."""
        found = sorted(self._every(data), key=lambda each: (each.start, -each.end))
        edits: list[Edit] = []
        for edit in found:
            if edit.start >= edit.end:
                continue
            last = edits[-1] if edits else None
            if last is None or edit.start >= last.end:
                edits.append(edit)
            elif edit.end > last.end:
                text = data[last.start : edit.end].translate(_HIDDEN)
                before = data[last.start : edit.end]
                edits[-1] = Edit(last.start, edit.end, last.rule, before, text)
        return edits

    def edits_of(self, data: bytes) -> list[Edit]:
        """Return what is overwritten in a file or the members of an archive."""
        items = unpacked("", data, _UNPACKED, is_named=True)
        sources = [item.source for item in items if isinstance(item.source, ReportSource)]
        return [edit for each in sources for edit in self.edits(_in_bytes(each.data))]

    def hashed(self, value: bytes) -> bytes:
        """Return what replaces a value, as long as it is; of the same form if it is hexadecimal."""
        digest = b""
        while len(digest) < len(value):
            counter = len(digest).to_bytes(4, "little")
            digest += blake2b(counter + value, key=self._key).digest()
        digits = (_HEX[each % 16] for each in digest)
        upper = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        return bytes(
            byte if byte in _STAY else ord(chr(digit).upper()) if byte in upper else digit
            for byte, digit in zip(value, digits, strict=False)
        )

    def _every(self, data: bytes) -> Iterator[Edit]:
        def edit(start: int, end: int, rule: str) -> Edit:
            before = data[start:end]
            return Edit(start, end, rule, before, before.translate(_MASKED))

        for name in self._rules.mask:
            yield from (edit(start, end, name) for start, end in FINDERS[name](data))
        for pattern in self._rules.patterns:
            group = 1 if pattern.groups else 0
            for match in pattern.finditer(data):
                yield edit(*match.span(group), "patterns")
        for fields, replacement in ((self._hash, self.hashed), (self._remove, _removed)):
            for name, field in fields:
                for start, end in field.spans(data):
                    made = edit(start, end, name)
                    yield made._replace(text=replacement(made.before))

    def _applied(self, data: bytes) -> bytes:
        edits = self.edits(data)
        if not edits:
            return data
        made = bytearray(data)
        for edit in edits:
            made[edit.start : edit.end] = edit.text
        if data.startswith(MAGIC):
            with suppress(FormatError):  # it is damaged, and goes to quarantine
                restore_checksums(made, data)
        return bytes(made)

    def _label(self, name: str) -> str:
        return self._applied(name.encode("utf-8", "replace")).decode("utf-8", "replace")

    def _scrubbed(self, data: bytes) -> bytes:
        items = list(unpacked("", data, _UNPACKED, is_named=True))
        first = items[0].source if items else None
        if isinstance(first, ReportSource) and first.data is data:
            return self._applied(_in_bytes(data))
        made: list[tuple[str, bytes]] = []
        is_other = False
        for item in items:
            if isinstance(item.source, ReportSource):
                before = _in_bytes(item.source.data)
                after = self._applied(before)
                is_other |= after != item.source.data
                made.append((self._label(item.name.lstrip(":")) or "report", after))
        return _packed(made) if is_other else data


def open_scrubber(folder: Path) -> Scrubber | None:
    """Return what scrubs for a warehouse; None if it has no rules.

    Raises:
        FileAccessError: its rules or its key cannot be read or written.
        FormatError: its rules are invalid.
    """
    rules = read_rules(folder)
    return None if rules is None else Scrubber(rules, _key(folder / KEY))


def _key(path: Path) -> bytes:
    """Return the secret of a warehouse, which is made if it has none."""
    try:
        if not path.exists():
            made = path.with_suffix(f".{os.getpid()}")
            file = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, os.urandom(_KEY_BYTES))
                os.fsync(file)
            finally:
                os.close(file)
            made.replace(path)
        key = path.read_bytes()
    except OSError as error:
        raise FileAccessError(str(path), error.strerror or str(error)) from None
    if len(key) != _KEY_BYTES:
        raise FormatError("not a key", source=str(path), offset=0, remedy="delete it")
    return key


def _removed(value: bytes) -> bytes:
    """Return what replaces a value of JSON, or a text."""
    if value[:1] in _OPENING and value[-1:] in (b"}", b"]"):
        return value[:1] + b" " * (len(value) - 2) + value[-1:]
    if value in (b"true", b"false", b"null"):
        return value
    is_number = value[:1].isdigit() or value[:1] == b"-"
    return b"0".rjust(len(value)) if is_number else value.translate(_HIDDEN)


def _in_bytes(data: bytes) -> bytes:
    """Return a text in UTF-16 in UTF-8, in which it is searched."""
    if data.startswith(_MARKS):
        try:
            return data.decode("utf-16").encode()
        except UnicodeError:
            return data
    return data


def _packed(members: list[tuple[str, bytes]]) -> bytes:
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data)
    return file.getvalue()
