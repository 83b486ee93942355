"""Where personal data is in the bytes of a report: spans, of which nothing else changes.

Each is searched for by a literal that it has, since most reports have none of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
Check: TypeAlias = Callable[[], object]
"""Is called now and then, and raises an error if the search takes too long."""
_NAME = rb"""(?:\\?/|\\{1,2})(?!(?:Shared|Public|Guest)\b)([^/\\"'\s:<>|,;()]+)"""
_FOLDERS = tuple((each, re.compile(rb"(?<=[/\\])" + each + _NAME)) for each in (b"Users", b"home"))
_CONTAINER = re.compile(
    rb"ontainers\\?/(?:Data|Bundle|Shared)\\?/\w{1,40}\\?/"
    rb"([0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12})"
)
_LOCAL = re.compile(rb"[\w.%+-]+\Z")
_HOST = re.compile(rb"@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b")
_MAX_LOCAL_LENGTH = 64
_INNER = re.compile(rb"\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\w.-])")
_FIRST = re.compile(rb"(?<![\w.-])\d{1,3}\Z")
_VERSION = re.compile(rb"(?:ersion|uild|\w \()[\"':=\s]*\Z")
_BEFORE = 24
"""Bytes before an address, which may make it a version."""
_SIX = re.compile(
    # Possessive: fewer digits of a group never match, and there are 4**7 ways to try them.
    rb"(?<![\w:])(?:(?:[0-9a-fA-F]{1,4}+:){7}[0-9a-fA-F]{1,4}+"
    rb"|[fF][eE]80:(?::?[0-9a-fA-F]{1,4}+){1,7}+)(?![\w:])"
)
_GROUPS = re.compile(rb":[0-9a-fA-F]{1,4}:[0-9a-fA-F]{1,4}:[0-9a-fA-F]")
_COLON = re.compile(rb"\s{0,9}:\s{0,9}")
_LINE = re.compile(rb"[ \t]*([^\r\n]*?)[ \t]*(?=\r?\n|\r?\Z)")
_INDENT = 200
"""Bytes before a label on its line."""
_OCTET = 255
_LOOPBACK, _UNSPECIFIED = 127, 0


def _user_folders(data: bytes, _check: Check) -> Iterator[Span]:
    for word, pattern in _FOLDERS:
        if word in data:
            yield from (match.span(1) for match in pattern.finditer(data))


def _containers(data: bytes, _check: Check) -> Iterator[Span]:
    if b"ontainers" in data:
        yield from (match.span(1) for match in _CONTAINER.finditer(data))


def _emails(data: bytes, check: Check) -> Iterator[Span]:
    at = data.find(b"@")
    while at >= 0:
        check()
        start = max(at - _MAX_LOCAL_LENGTH, 0)
        local = _LOCAL.search(data[start:at])
        host = _HOST.match(data, at)
        if local is not None and host is not None:
            yield start + local.start(), host.end()
        at = data.find(b"@", at + 1)


def _addresses(data: bytes, check: Check) -> Iterator[Span]:
    for match in _INNER.finditer(data):
        check()
        start = max(match.start() - _BEFORE, 0)
        before = data[start : match.start()]
        first = _FIRST.search(before)
        if first is None or _VERSION.search(before[: first.start()]):
            continue
        octets = [int(each) for each in (first[0] + match[0]).split(b".")]
        if octets[0] not in (_LOOPBACK, _UNSPECIFIED) and max(octets) <= _OCTET:
            yield start + first.start(), match.end()
    # The colons of JSON are most of all, and none of an address.
    if b"e80::" in data or b"E80::" in data or _GROUPS.search(data.replace(b'":', b"")):
        yield from (match.span() for match in _SIX.finditer(data))


FINDERS: Mapping[str, Callable[[bytes, Check], Iterator[Span]]] = {
    "user-folders": _user_folders,
    "containers": _containers,
    "email": _emails,
    "ip": _addresses,
}
"""By the name of a rule: yields what is overwritten."""


class Field:
    """The values of a key of JSON, or behind a word and a colon at the beginning of a line."""

    def __init__(self, path: str) -> None:
        """Compile a path: ``key``, or ``outer.key``, which is a key anywhere within another one."""
        *outer, last = path.split(".")
        self._outer = [each.encode() for each in outer]
        self._key = last.encode()

    def spans(self, data: bytes, check: Check = lambda: None) -> Iterator[Span]:
        """Yield the values, of texts without their quotes."""
        if not all(word in data for word in (*self._outer, self._key)):
            return
        text = data.decode("latin-1")  # a character for each byte
        inside: list[Span] = [(0, len(data))]
        for key in self._outer:
            inside = [
                span
                for start, end in inside
                for span in _values(key, data, text, (start, end), check)
            ]
        for start, end in inside:
            yield from _values(self._key, data, text, (start, end), check)
        if not self._outer:
            yield from _labelled(self._key + b":", data)


def _labelled(label: bytes, data: bytes) -> Iterator[Span]:
    """Yield what follows a word and a colon at the beginning of a line."""
    at = data.find(label)
    while at >= 0:
        begin = at + len(label)
        before = data[max(at - _INDENT, 0) : at].rpartition(b"\n")
        is_first = bool(before[1]) or at <= _INDENT
        if is_first and not before[2].strip(b" \t"):
            line = _LINE.match(data, begin)
            if line is not None:
                yield line.span(1)
        at = data.find(label, begin)


def _values(key: bytes, data: bytes, text: str, within: Span, check: Check) -> Iterator[Span]:
    """Yield the values of a key of JSON."""
    start, end = within
    # To search for the literal is ten times as fast as for a pattern with what may precede it.
    quoted = b'"' + key + b'"'
    at = start
    while (place := data.find(quoted, at, end)) >= 0:
        check()
        at = place + len(quoted)
        match = _COLON.match(data, at, end)
        if match is None or (place > start and data[place - 1 : place] == b"\\"):
            continue
        begin = match.end()
        try:
            _, at = json.JSONDecoder().raw_decode(text, begin)
        except (ValueError, RecursionError):
            # Damaged: to the end of the line at least nothing stays.
            line = data.find(b"\n", begin, end)
            at = end if line < 0 else line
        at = max(min(at, end), begin)
        is_text = data[begin : begin + 1] == b'"' and data[at - 1 : at] == b'"' and at > begin + 1
        yield (begin + 1, at - 1) if is_text else (begin, at)
