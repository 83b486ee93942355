"""Personal data in received bytes is overwritten in place.

What replaces a value has its length, so that every format stays readable: lengths in binary
formats, columns of texts, offsets. Archives are unpacked and packed again; the checksums of
spools are corrected.

A hash that is as short as its value is one of several devices. So it is a pseudonym, different from
all others of the same body, and the body states of which identifier: a hash of 128 bits.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from machtrace.errors import FileAccessError, FormatError, MachtraceError
from machtrace.reports.inputs import InputLimits, unpacked
from machtrace.reports.sentry.facts import user_key
from machtrace.reports.source import ReportSource
from machtrace.reports.spool.records import MAGIC, restore_checksums
from machtrace.warehouse.ingest import Body
from machtrace.warehouse.scrubbing.finders import FINDERS, Field
from machtrace.warehouse.scrubbing.rules import DEFAULT_RULES, Rules, parse_rules, read_rules

KEY = "scrub.key"
_KEY_BYTES = 32
_WHOLE = 32
"""Hexadecimal digits of a hash that no two devices have."""
_IDENTIFIER_BYTES = 16
_ATTEMPTS = 100
"""Pseudonyms that are tried until one is not in use."""
_SECONDS, _SECONDS_A_BYTE = 5.0, 4.0 / (1 << 20)
"""Processor time for a body; what takes longer searches the same bytes again and again."""
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_UPPER = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_UNPACKED = InputLimits(file_bytes=1 << 28, total_bytes=1 << 28)
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_OPENING = (b"{", b"[")
_WORDS = (b"true", b"false", b"null")
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


class ScrubError(MachtraceError):
    """Scrubbing a body takes too long; it is not stored."""

    remedy = "correct the rule in scrub.toml; try it: machtrace warehouse scrub FOLDER --try FILE"

    def __init__(self, rule: str) -> None:
        super().__init__(f"scrubbing it takes too long: {rule} searches the same bytes often")
        self.rule = rule
        """Which one takes most of the time: ``pattern 2``, ``'user.email'``."""


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
        """Return received bytes without what the rules select, and which devices they have.

        Raises:
            ScrubError: it takes too long.
        """
        work = _Work(self)
        name = self._label(body.name, work)
        data = self._scrubbed(body.data, work)
        return body._replace(name=name, data=data, devices=work.devices)

    def edits(self, data: bytes, work: _Work | None = None) -> list[Edit]:
        """Return what is overwritten in a file that is no archive, in order.

        Args:
            data: the file.
            work: that of the body which it belongs to; None: it is one.

        Raises:
            ScrubError: it takes too long.
        """
        work = _Work(self) if work is None else work
        work.begin(len(data))
        overlapping = sorted(self._every(data, work), key=lambda edit: (edit.start, -edit.end))
        edits: list[Edit] = []
        for edit in overlapping:
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
        """Return what is overwritten in a file or the members of an archive.

        Raises:
            ScrubError: it takes too long.
        """
        items = unpacked("", data, _UNPACKED, is_named=True)
        sources = [item.source for item in items if isinstance(item.source, ReportSource)]
        work = _Work(self)
        return [edit for source in sources for edit in self.edits(_in_bytes(source.data), work)]

    def hashed(self, value: bytes, attempt: int = 0) -> bytes:
        """Return what replaces a value, as long as it is; of the same form if it is hexadecimal.

        Args:
            value: what is replaced, but spaces around it.
            attempt: another number makes another one.
        """
        text = value.strip()
        digits = (_HEX[each % 16] for each in self._digest(text, attempt))
        made = bytes(
            byte if byte in _STAY else ord(chr(digit).upper()) if byte in _UPPER else digit
            for byte, digit in zip(text, digits, strict=False)
        )
        return made.join(value.split(text, 1)) if text else value

    def hashed_number(self, value: bytes, attempt: int = 0) -> bytes:
        """Return a number that replaces one, with as many digits; the first one is not zero."""
        digits = (
            ord("1") + each % 9 if at == 0 else ord("0") + each % 10
            for at, each in enumerate(self._digest(value, attempt))
        )
        return bytes(next(digits) if byte in _DIGITS else byte for byte in value)

    def identifier(self, value: bytes) -> str:
        """Return the identifier of a device: a hash of at least 128 bits, whatever the value."""
        value = value.strip()
        if is_whole(value):
            return self.hashed(value).decode("ascii")
        return blake2b(
            value, key=self._key, digest_size=_IDENTIFIER_BYTES, person=b"device"
        ).hexdigest()

    def _digest(self, value: bytes, attempt: int) -> bytes:
        digest = b""
        while len(digest) < len(value):
            counter = len(digest).to_bytes(4, "little")
            salt = attempt.to_bytes(4, "little")
            digest += blake2b(counter + value, key=self._key, salt=salt).digest()
        return digest

    def _every(self, data: bytes, work: _Work) -> Iterator[Edit]:
        def edit(start: int, end: int, rule: str, text: bytes | None = None) -> Edit:
            work.check()
            before = data[start:end]
            return Edit(
                start, end, rule, before, before.translate(_MASKED) if text is None else text
            )

        for number, pattern in enumerate(self._rules.patterns, 1):
            work.begin_rule(f"pattern {number}")
            group = 1 if pattern.groups else 0
            for match in pattern.finditer(data):
                yield edit(*match.span(group), "patterns")
        for name, field in self._hash:
            work.begin_rule(repr(name))
            for start, end in field.spans(data, work.check):
                is_quoted = data[start - 1 : start] == b'"'
                yield edit(start, end, name, work.hashed(data[start:end], is_quoted=is_quoted))
        # Of values that are hashed as a whole nothing is masked: all addresses would be one device.
        for name in self._rules.mask:
            work.begin_rule(repr(name))
            for start, end in FINDERS[name](data, work.check):
                yield edit(start, end, name)
        for name, field in self._remove:
            work.begin_rule(repr(name))
            for start, end in field.spans(data, work.check):
                yield edit(start, end, name, _removed(data[start:end]))

    def _applied(self, data: bytes, work: _Work) -> bytes:
        edits = self.edits(data, work)
        if not edits:
            return data
        made = bytearray(data)
        for edit in edits:
            made[edit.start : edit.end] = edit.text
        if data.startswith(MAGIC):
            with suppress(FormatError):  # it is damaged, and goes to quarantine
                restore_checksums(made, data)
        return bytes(made)

    def _label(self, name: str, work: _Work) -> str:
        return self._applied(name.encode("utf-8", "replace"), work).decode("utf-8", "replace")

    def _scrubbed(self, data: bytes, work: _Work) -> bytes:
        items = list(unpacked("", data, _UNPACKED, is_named=True))
        first = items[0].source if items else None
        if isinstance(first, ReportSource) and first.data is data:
            return self._applied(_in_bytes(data), work)
        made: list[tuple[str, bytes]] = []
        is_other = False
        for item in items:
            if isinstance(item.source, ReportSource):
                before = _in_bytes(item.source.data)
                after = self._applied(before, work)
                is_other |= after != item.source.data
                made.append((self._label(item.name.lstrip(":"), work) or "report", after))
        return _packed(made) if is_other else data


class _Work:
    """Results of scrubbing a body so far: pseudonyms of devices, and the time that is left."""

    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber
        self._rule, self._since = "a rule", time.thread_time()
        self._end = self._since + _SECONDS
        self._spent: Counter[str] = Counter()
        """Processor time, in ns, by rule."""
        self._made: dict[tuple[bytes, bool], bytes] = {}
        self._used: set[str] = set()
        self.devices: dict[str, str] = {}
        """Identifiers of devices, by the pseudonyms of those whose hash is short."""

    def begin(self, size: int) -> None:
        """Take the time for some more bytes."""
        self._end += size * _SECONDS_A_BYTE

    def begin_rule(self, rule: str) -> None:
        """Take the time that follows for a rule's."""
        now = time.thread_time()
        self._spent[self._rule] += int((now - self._since) * 1e9)
        self._rule, self._since = rule, now

    def check(self) -> None:
        """Raise an error if no time is left.

        Raises:
            ScrubError: none is.
        """
        if time.thread_time() > self._end:
            rule = self._rule
            self.begin_rule(rule)
            self._spent.pop("a rule", None)  # what was before the first one
            raise ScrubError(max(self._spent, key=self._spent.__getitem__, default=rule))

    def hashed(self, value: bytes, *, is_quoted: bool) -> bytes:
        """Return what replaces a value that is hashed."""
        if not is_quoted and (value[:1] in _OPENING or value in _WORDS):
            return _removed(value)
        is_number = not is_quoted and _NUMBER.fullmatch(value) is not None
        if not is_number and is_whole(value):
            return self._scrubber.hashed(value)
        known = self._made.get((value, is_number))
        if known is None:
            known = self._made[value, is_number] = self._pseudonym(value, is_number=is_number)
        return known

    def _pseudonym(self, value: bytes, *, is_number: bool) -> bytes:
        make = self._scrubber.hashed_number if is_number else self._scrubber.hashed
        for attempt in range(_ATTEMPTS):
            made = make(value, attempt)
            text = made.decode("ascii").strip()
            if text not in self._used:
                break
        else:  # there are no others of this length: nobody knows which device it is
            self.devices[text] = ""
            return made
        self._used.add(text)
        self.devices[text] = self._scrubber.identifier(_unescaped(value))
        return made


def is_whole(value: bytes) -> bool:
    """Whether the hash that replaces a value is one of no two devices."""
    return sum(byte not in _STAY for byte in value) >= _WHOLE


def may_be_short_hash(text: str) -> bool:
    """Whether a text may be a hash that two devices have."""
    value = text.encode("utf-8", "replace")
    is_hash = all(byte in _STAY or byte in _HEX or byte in _HEX.upper() for byte in value)
    return is_hash and not is_whole(value)


def stated_devices(data: bytes) -> set[str]:
    """Return the devices that a file or an archive states which no reader understands."""
    fields = [Field(name) for name in parse_rules(DEFAULT_RULES.encode(), "").hash]
    devices: set[str] = set()
    for item in unpacked("", data, _UNPACKED, is_named=True):
        if isinstance(item.source, ReportSource):
            text = _in_bytes(item.source.data)
            for field in fields:
                devices |= {
                    _unescaped(text[start:end]).decode("utf-8", "replace").strip()
                    for start, end in field.spans(text)
                }
    return devices | set(map(user_key, devices))


def open_scrubber(folder: Path) -> Scrubber | None:
    """Return what scrubs for a warehouse; None if it has no rules.

    Raises:
        FileAccessError: its rules or its key cannot be read or written.
        FormatError: its rules are invalid.
    """
    rules = read_rules(folder)
    return None if rules is None else Scrubber(rules, _key(folder / KEY))


def opened_key(folder: Path) -> Scrubber | None:
    """Return what hashes for a warehouse, which may have no rules any more; None if it never did.

    Raises:
        FileAccessError, FormatError: its key cannot be read.
    """
    path = folder / KEY
    return Scrubber(Rules(), _key(path)) if path.exists() else None


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


def _unescaped(value: bytes) -> bytes:
    """Return the text of a string of JSON."""
    if b"\\" in value:
        with suppress(ValueError):
            return str(json.loads(b'"' + value + b'"')).encode("utf-8", "replace")
    return value


def _removed(value: bytes) -> bytes:
    """Return what replaces a value of JSON, or a text."""
    if value[:1] in _OPENING and value[-1:] in (b"}", b"]"):
        return value[:1] + b" " * (len(value) - 2) + value[-1:]
    if value in _WORDS:
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
