"""Reading JSON that may be deeply nested, truncated or invalid.

Python's reader parses what is valid and not too deep. Other text is parsed again without recursion:
everything recognisable is preserved, open containers are closed at the end, and invalid values
become text. Time and memory are linear in the text.
"""

from __future__ import annotations

import json
import re
from math import isfinite

from machtrace.errors import FormatError
from machtrace.frozen import dataclass
from machtrace.model.report import JsonValue


@dataclass(frozen=True, slots=True)
class JsonDocument:
    """A value, and where it ended."""

    value: JsonValue
    end: int
    """The character index of its end."""
    warnings: tuple[str, ...] = ()
    """The repairs."""


def put(made: dict[str, JsonValue], times: dict[str, int], key: str, value: JsonValue) -> None:
    """Add an entry to an object; a repeated key gets a number.

    Args:
        made: the object.
        times: counts of repeated keys, to be stored beside the object.
        key: as written.
        value: its value.
    """
    free = key
    while free in made:
        times[key] = times.get(key, 1) + 1
        free = f"{key} ({times[key]})"
    made[free] = value


def finite(text: str) -> JsonValue:
    """Parse a number; one that is too large stays text, since JSON has no infinity."""
    number = float(text)
    return number if isfinite(number) else text


DEEP_KEYS = frozenset({"subFrames", "callStackRootFrames"})
"""Keys of the lists that nest stacks: these do not count as depth."""
MAX_DEPTH = 200
"""Maximum levels of other nesting; deeper values are stored as text."""
_MAX_WARNINGS = 5
"""Warnings reported in full."""

_TOKEN = re.compile(
    r"\s*+(?:"
    r'(?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*"?)'
    r"|(?P<mark>[{}\[\],:])"
    r"|(?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![^\s,\]}:]))"
    r'|(?P<word>[^\s{}\[\],:"]+))',
    re.DOTALL,
)
"""Matches at anything but space, so that nothing has to be searched."""
_PLAIN = r'"[^"\\]*+"'
_NUMBER = r"-?(?:0|[1-9][0-9]{0,99}+)(?:\.[0-9]{1,99}+)?(?:[eE][+-]?[0-9]{1,9}+)?"
_RUN = re.compile(
    rf"[ \t\r\n]*+(?P<members>(?:{_PLAIN}[ \t\r\n]*+:[ \t\r\n]*+"
    rf"(?:{_PLAIN}|{_NUMBER}|true|false|null)[ \t\r\n]*+,[ \t\r\n]*+)*)"
    rf"(?:(?P<key>{_PLAIN})[ \t\r\n]*+:[ \t\r\n]*+(?P<mark>[{{\[]))?"
)
"""Simple entries of an object, and the key of a following list or object."""
_ENTRIES = json.JSONDecoder(object_pairs_hook=list, parse_float=finite, strict=False)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})(?:\\u([dD][c-fC-F][0-9a-fA-F]{2}))?|(.)|)", re.DOTALL)
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS: dict[str, JsonValue] = {"true": True, "false": False, "null": None}
_MAX_NUMBER_LENGTH = 400
_CLOSES = {"}": "{", "]": "["}


class _Open:
    """A list or object that is not closed yet."""

    __slots__ = ("depth", "entries", "items", "key", "mark", "times")

    def __init__(self, mark: str, depth: int) -> None:
        self.mark = mark
        self.depth = depth
        self.items: list[JsonValue] | None = [] if mark == "[" else None
        self.entries: dict[str, JsonValue] = {}
        self.times: dict[str, int] | None = None
        self.key: str | None = None
        """A key whose value is not read yet."""

    def add(self, value: JsonValue) -> None:
        if self.items is not None:
            self.items.append(value)
            return
        key, self.key = self.key or "", None
        if key in self.entries:
            self.times = {} if self.times is None else self.times
            put(self.entries, self.times, key, value)
        else:
            self.entries[key] = value

    def closed(self) -> JsonValue:
        if self.items is not None:
            return self.items
        if self.key is not None:
            self.add(None)
        return self.entries


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.open: list[_Open] = []
        self.warnings: list[str] = []
        self.unreported = 0
        """Warnings beyond the reported ones: every few characters can cause one."""
        self.skipped = 0
        """Open levels within what is stored as text."""
        self.skipped_from = 0

    def warn(self, message: str, at: int | None = None) -> None:
        if len(self.warnings) < _MAX_WARNINGS:
            self.warnings.append(message if at is None else f"character {at}: {message}")
        else:
            self.unreported += 1

    def run(self, at: int) -> int:
        """Consume simple entries at once; return their end."""
        inner = self.open[-1]
        if self.skipped or inner.mark != "{" or inner.key is not None:
            return at
        match = _RUN.match(self.text, at)
        if match is None:
            return at
        if members := match["members"]:
            for key, value in _ENTRIES.decode("{" + members.rstrip(" \t\r\n,") + "}"):
                inner.key = key
                inner.add(value)
        if match["mark"] is not None:
            inner.key = match["key"][1:-1]
            self._open(match["mark"], match.start("mark"))
        return match.end()

    def token(self, match: re.Match[str]) -> JsonValue | _Open:
        """Consume a token; return the whole value once closed, else the open list."""
        mark, at = match["mark"], match.start(match.lastgroup or 0)
        if self.skipped:
            self._skip(match)
        elif mark in ("{", "["):
            self._open(mark, at)
        elif mark in ("}", "]"):
            return self._close(mark, at)
        elif mark == ",":
            self._without_value(at)
        elif mark is None:
            self._scalar(match)
        return self.open[0]

    def cut_off(self) -> JsonValue | _Open:
        """Return the whole value if the text ends early."""
        self.warn("the text ends before its JSON does")
        if self.skipped:
            self._add(self.text[self.skipped_from :])
        while len(self.open) > 1:
            self._end()
        return self._end()

    def _skip(self, match: re.Match[str]) -> None:
        mark = match["mark"]
        self.skipped += (mark in ("{", "[")) - (mark in ("}", "]"))
        if not self.skipped:
            self._add(self.text[self.skipped_from : match.end()])

    def _open(self, mark: str, at: int) -> None:
        outer = self.open[-1] if self.open else None
        depth = 0
        if outer is not None:
            in_deep = outer.mark == "{" and outer.key in DEEP_KEYS
            depth = outer.depth + (0 if in_deep or self._is_deep_list(outer) else 1)
        if depth > MAX_DEPTH:
            self.skipped, self.skipped_from = 1, at
            self.warn(f"nested more than {MAX_DEPTH} deep, stored as text", at)
            return
        self.open.append(_Open(mark, depth))

    def _is_deep_list(self, outer: _Open) -> bool:
        if outer.mark != "[" or len(self.open) < 2:  # noqa: PLR2004 - it and what it is in
            return False
        holder = self.open[-2]
        return holder.mark == "{" and holder.key in DEEP_KEYS

    def _without_value(self, at: int) -> None:
        inner = self.open[-1]
        if inner.mark == "{" and inner.key is not None:
            self.warn("a key without a value", at)
            inner.add(None)

    def _close(self, mark: str, at: int) -> JsonValue | _Open:
        if self.open[-1].mark != _CLOSES[mark]:
            if not any(one.mark == _CLOSES[mark] for one in self.open[-3:]):
                self.warn(f"{mark} closes nothing", at)
                return self.open[0]
            while self.open[-1].mark != _CLOSES[mark]:
                self.warn(f"{self.open[-1].mark} was not closed", at)
                self._end()
        return self._end()

    def _end(self) -> JsonValue | _Open:
        value = self.open.pop().closed()
        if not self.open:
            return value
        self._add(value)
        return self.open[0]

    def _scalar(self, match: re.Match[str]) -> None:
        string, number = match["string"], match["number"]
        if string is not None:
            self._add(self._text(string, match.start("string")), is_key=True)
        elif number is not None and len(number) < _MAX_NUMBER_LENGTH:
            is_whole = number.lstrip("-").isdecimal()
            self._add(int(number) if is_whole else finite(number))
        else:
            word = match[match.lastgroup or 0]
            if word not in _WORDS:
                at = match.start(match.lastgroup or 0)
                self.warn(f"{word[:20]!r} is not a value, stored as text", at)
            self._add(_WORDS.get(word, word))

    def _text(self, token: str, at: int) -> str:
        if len(token) < 2 or not token.endswith('"'):  # noqa: PLR2004 - the quotes
            self.warn("a string does not end", at)
            token += '"'
        inner = token[1:-1]
        return _ESCAPE.sub(_unescaped, inner) if "\\" in inner else inner

    def _add(self, value: JsonValue, *, is_key: bool = False) -> None:
        inner = self.open[-1]
        if inner.mark == "{" and inner.key is None:
            if is_key and isinstance(value, str):
                inner.key = value
                return
            self.warn("a value without a key", 0)
        inner.add(value)


def _unescaped(match: re.Match[str]) -> str:
    high, low, other = match.groups()
    if high is None:
        return _ESCAPED.get(other or "", other or "")
    first = int(high, 16)
    if low is not None and 0xD800 <= first < 0xDC00:  # noqa: PLR2004 - surrogates, in pairs
        return chr(0x10000 + ((first - 0xD800) << 10) + int(low, 16) - 0xDC00)
    return chr(first) + ("" if low is None else chr(int(low, 16)))


def read_broken(text: str, start: int) -> JsonDocument:
    """Parse the value at ``start`` of ``text``, which begins an object or a list."""
    reader = _Reader(text)
    reader.open.append(_Open(text[start], 0))
    end = start + 1
    value: JsonValue | _Open = reader.open[0]
    while reader.open:
        end = reader.run(end)
        match = _TOKEN.match(text, end)
        if match is None:
            break
        end = match.end()
        value = reader.token(match)
    if reader.open:
        value = reader.cut_off()
    assert not isinstance(value, _Open)  # noqa: S101 - for the type checker: nothing is open
    unreported = [f"{reader.unreported} more such errors"] if reader.unreported else []
    return JsonDocument(value, end, (*reader.warnings, *unreported))


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    """Build an object with all of its entries: a repeated key gets a number."""
    made = dict(pairs)
    if len(made) < len(pairs):
        made, times = {}, dict[str, int]()
        for key, value in pairs:
            put(made, times, key, value)
    return made


def _whole(text: str, start: int) -> JsonDocument:
    """Parse a value with all entries of its objects, also those of repeated keys.

    The decoder's own objects are built twice as fast as by a pairs hook, and have as many keys as
    the text if none is repeated.

    Raises:
        ValueError, RecursionError: it is invalid, or too deep.
    """
    entries = 0

    def counted(made: dict[str, JsonValue]) -> dict[str, JsonValue]:
        nonlocal entries
        entries += len(made)
        return made

    decoder = json.JSONDecoder(object_hook=counted, parse_float=finite, parse_constant=str)
    value, end = decoder.raw_decode(text, start)
    if _most_keys(text, start, end) != entries:
        value, end = _DECODER.raw_decode(text, start)
    return JsonDocument(value, end)


def _most_keys(text: str, start: int, end: int) -> int:
    """Return an upper bound of the number of keys: strings may resemble one; -1: unknown."""
    # In valid JSON a colon outside of strings follows a key's closing quote, with space between
    # at most. Without the spellings of _SELDOM that is at most one space, so the two counts miss
    # no key; a string that contains them only raises the count, and the slower hook decides.
    for space, spellings in _SELDOM:
        # To search for one character is ten times as fast.
        if text.find(space, start, end) >= 0 and any(
            text.find(spelling, start, end) >= 0 for spelling in spellings
        ):
            return -1
    return text.count('":', start, end) + text.count('" :', start, end)


_SELDOM = (
    ("\t", ("\t:", "\t :")),
    ("\n", ("\n:", "\n :")),
    ("\r", ("\r:", "\r :")),
    (" ", ("  :",)),
)
"""By its first character: text that precedes a colon other than a quote, or a quote and a space."""
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=finite, parse_constant=str)


def read_json(text: str, start: int, source: str) -> JsonDocument:
    """Parse the value at ``start`` of ``text``: an object or a list.

    Raises:
        FormatError: there is no JSON.
    """
    if text[start : start + 1] not in ("{", "["):
        raise FormatError("no JSON", source=source, offset=start)
    try:
        return _whole(text, start)
    except (ValueError, RecursionError):
        return read_broken(text, start)
