"""The bytes of a report, with what is parsed from them once."""

from __future__ import annotations

import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from functools import cached_property

from machtrace.errors import FormatError
from machtrace.frozen import dataclass
from machtrace.model.report import JsonValue
from machtrace.reports.lenient_json import JsonDocument, read_json

STANDARD_INPUT = "standard input"
"""The name of the source that is piped in."""
_MARKS = ((BOM_UTF8, "utf-8"), (BOM_UTF16_LE, "utf-16-le"), (BOM_UTF16_BE, "utf-16-be"))
_HALF = re.compile(r"(?<!\\)((?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2})(?=[\udc80-\udcff])")
_DOCUMENTS = 2
"""Maximum JSON documents of a report: a header and a body."""


@dataclass(frozen=True)
class ReportSource:
    """A file's contents."""

    name: str
    """The name in errors and warnings."""
    data: bytes

    @cached_property
    def text(self) -> str:
        r"""The text with ``\n`` line ends; an undecodable byte is a lone surrogate."""
        text = _decoded(self.data)
        return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text

    @cached_property
    def documents(self) -> tuple[JsonDocument, ...]:
        """The JSON documents at its beginning, at most two; none if it is not JSON."""
        documents: list[JsonDocument] = []
        end = 0
        while len(documents) < _DOCUMENTS:
            start = next_document(self.text, end)
            if not self.text.startswith(("{", "["), start):
                break
            try:
                documents.append(read_json(self.text, start, self.name))
            except FormatError:
                if not documents:
                    raise
                break
            end = documents[-1].end
        return tuple(documents)

    @property
    def value(self) -> JsonValue:
        """The value of the first JSON document; None if it is not JSON."""
        return self.documents[0].value if self.documents else None

    @property
    def rest(self) -> str:
        """The text after the first document."""
        return self.text[self.documents[0].end :] if self.documents else self.text

    def error(self, message: str) -> FormatError:
        """Return an error about the file as a whole."""
        return FormatError(message, source=self.name, offset=0)


def _decoded(data: bytes) -> str:
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            rest = data[len(mark) :]
            return _from_utf8(rest) if encoding == "utf-8" else rest.decode(encoding, "replace")
    if data[1:2] == b"\0" and data[:1] != b"\0":
        return data.decode("utf-16-le", "replace")
    if data[:1] == b"\0" and data[1:2] != b"\0":
        return data.decode("utf-16-be", "replace")
    return _from_utf8(data)


def _from_utf8(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        # Half a surrogate pair escaped in JSON, next to an undecodable byte, would decode to a
        # character that nobody wrote: the escape becomes text.
        return _HALF.sub(r"\1\\\2", data.decode("utf-8", "surrogateescape"))


def next_document(text: str, start: int) -> int:
    """Return the index of the next character that is not space."""
    size = len(text)
    while start < size and text[start].isspace():
        start += 1
    return start
