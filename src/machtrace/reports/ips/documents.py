"""The headers and bodies of a file.

Usually one of each. Concatenated files have several, and a macOS text with the heading *Full
Report* has one below the text made from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from machtrace.errors import FormatError
from machtrace.model.report import JsonValue
from machtrace.reports.crash.reader import is_crash_text
from machtrace.reports.ips.system_reports import is_jetsam, is_panic, is_stackshot
from machtrace.reports.lenient_json import JsonDocument, read_broken, read_json
from machtrace.reports.source import ReportSource, next_document

_BROKEN = 16
"""Maximum broken documents of a file."""
_HEADER = frozenset({"bug_type", "incident_id", "os_version", "app_name", "app_version"})
_SURE = "bug_type"
"""A key that only headers have."""
_BODY = frozenset({"usedImages", "threads", "procName", "procPath", "faultingThread", "bundleInfo"})
_FULL_REPORT = re.compile(r"^-+\nFull Report\n-+\n\s{0,8}(?=\{)", re.MULTILINE)
_NEXT_HEADER = re.compile(r'^\{(?=[^\n]{0,4096}"bug_type")', re.MULTILINE)


class IpsPart(NamedTuple):
    """The source of one report."""

    header: JsonValue
    """None if missing."""
    body: JsonValue
    """None if not JSON."""
    text: str
    """The rest: the body if that is text, else what follows it."""
    at: int
    """The character index of its start."""
    warnings: tuple[str, ...]


def is_header(value: JsonValue) -> bool:
    """Return whether it has the keys of headers, and not those of a body."""
    return isinstance(value, dict) and len(_HEADER & value.keys()) > 1 and not is_body(value)


def may_be_header(value: JsonValue) -> bool:
    """Return whether it has a key of headers, which suffices if a body follows."""
    return isinstance(value, dict) and bool(_HEADER & value.keys()) and not is_body(value)


def is_body(value: JsonValue) -> bool:
    """Return whether it has the keys of a JSON body: crash, jetsam event, stackshot or panic."""
    if not isinstance(value, dict):
        return False
    return (
        len(_BODY & value.keys()) > 1 or is_jetsam(value) or is_stackshot(value) or is_panic(value)
    )


def begins_report(source: ReportSource) -> bool:
    """Return whether a file that begins with JSON is of this kind.

    A single key makes a header if it is the body's type, or if a body follows.
    """
    documents = source.documents
    first = documents[0].value
    if is_header(first) or is_body(first):
        return True
    if not isinstance(first, dict) or not may_be_header(first):
        return False
    if len(documents) > 1:
        return _SURE in first or is_body(documents[1].value)
    return _SURE in first or is_crash_text(source.rest)


def full_report(text: str) -> int | None:
    """Return where the *Full Report* of a macOS text begins; None if it has none."""
    if "\nFull Report\n" not in text:
        return None
    match = _FULL_REPORT.search(text)
    return None if match is None else match.end()


def ips_parts(source: ReportSource, start: int | None) -> Iterator[IpsPart]:
    """Yield the parts of all reports.

    Args:
        source: of the file.
        start: of the first; None for the file's beginning, whose documents are parsed already.
    """
    text = source.text
    documents = _Documents(text, source.name)
    pending: list[JsonDocument] = [] if start is not None else [*source.documents]
    at = 0 if start is None else start
    while True:
        document = pending.pop(0) if pending else documents.read(at)
        part, at, pending = _part(text, at, document, pending, documents)
        yield part
        if not pending and not text.startswith("{", at):
            return


def _begins(document: JsonDocument) -> bool:
    """Return whether a further report begins with it."""
    return may_be_header(document.value) or is_body(document.value)


class _Documents:
    """Parses the documents of one text."""

    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self.name = name
        self._broken = 0

    def read(self, start: int) -> JsonDocument:
        """Parse the document at ``start``.

        Python's reader counts all preceding lines to report an error, so that it is avoided once
        many documents are broken.
        """
        if self._broken > _BROKEN:
            return read_broken(self._text, start)
        document = read_json(self._text, start, self.name)
        self._broken += bool(document.warnings)
        return document

    def next(self, end: int) -> JsonDocument | None:
        """Parse the document that comes next; None if something else does."""
        start = next_document(self._text, end)
        return self.read(start) if self._text.startswith(("{", "["), start) else None


def _part(
    text: str, start: int, first: JsonDocument, pending: list[JsonDocument], documents: _Documents
) -> tuple[IpsPart, int, list[JsonDocument]]:
    """Return the part that begins with ``first``, its end, and documents parsed beyond it."""
    header, body, end = first.value, None, first.end
    warnings = first.warnings
    if is_body(header):
        header, body = None, header
        following = None if pending else documents.next(end)
        pending = pending if following is None else [following]
    else:
        second = pending.pop(0) if pending else documents.next(end)
        if second is not None and is_header(second.value):
            pending = [second]
        elif second is not None:
            body, end = second.value, second.end
            warnings += second.warnings
    stop = len(text)
    pending = [one for one in pending if _begins(one)]
    if pending:
        stop = next_document(text, end)
        return IpsPart(header, body, "", start, warnings), stop, pending
    at = end
    while (match := _NEXT_HEADER.search(text, at)) is not None:
        document = documents.read(match.start())
        if _begins(document):
            stop, pending = match.start(), [document]
            break
        at = document.end
    rest = text[end:stop].strip()
    if body is None and rest.startswith("{"):
        raise FormatError("the body is not JSON", source=documents.name, offset=end)
    return IpsPart(header, body, rest, start, warnings), stop, pending
