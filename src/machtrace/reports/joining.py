"""Files of reports that follow each other in one, as on standard output."""

from __future__ import annotations

from machtrace.reports.formats import ReportFormat

_JSON_END = b"\n]}\n"


class FileJoiner:
    """What to write, file by file; the format's ``between`` is not None."""

    def __init__(self, chosen: ReportFormat) -> None:
        self._between = chosen.between or b""
        self._is_document = chosen.name == "json"
        self._is_first = True

    def add(self, data: bytes) -> bytes:
        """A file's bytes as they are written after those before it."""
        is_first, self._is_first = self._is_first, False
        if not self._is_document:
            return data if is_first else self._between + data
        # One document of all: each is a first line, a line for each report, and a last line.
        data = data.removesuffix(_JSON_END)
        return data if is_first else b"," + data[data.index(b"\n") :]

    def end(self) -> bytes:
        """What comes after the last."""
        return _JSON_END if self._is_document and not self._is_first else b""
