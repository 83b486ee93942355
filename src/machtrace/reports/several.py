"""Files of several documents of JSON: lists of reports, and a report a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from machtrace.errors import FormatError
from machtrace.model.json_value import JsonValue
from machtrace.reports.lenient_json import read_json
from machtrace.reports.json_writer import dumps
from machtrace.reports.source import ReportSource, next_document

_KEYS = frozenset(
    {
        *("report_schema", "bug_type", "usedImages", "threads", "procName", "panicString"),
        *("processByPid", "processes", "crash", "binary_images", "recrash_report", "productData"),
        *("callStackTree", "callStacks", "callStackThreads"),
    }
)
_ENDS = ("Diagnostics", "Diagnostic")


class Part(NamedTuple):
    """A document of a file, or a text that is none."""

    text: str
    may_be_report: bool
    """Whether it is worth asking what it is: files may have a million objects of nothing."""

    def source(self, name: str) -> ReportSource:
        """The part as a file of its own."""
        return ReportSource(name, self.text.encode("utf-8", "surrogateescape"))


def listed(source: ReportSource) -> Iterator[Part]:
    """Each of the objects that a file is a list of; none where it is no such list.

    Senders of KSCrash's reports, and apps that keep payloads of MetricKit, write such.
    """
    documents = source.documents
    items = documents[0].value if documents else None
    if isinstance(items, list) and items and all(isinstance(one, dict) for one in items):
        for one in items:
            yield Part(dumps(one), _may_be_report(one))
        yield from following(source)


def following(source: ReportSource) -> Iterator[Part]:
    """What follows the first document of a file: each further object, then any other text."""
    text = source.text
    at = next_document(text, source.documents[0].end) if source.documents else len(text)
    while at < len(text):
        end, value = len(text), None
        if text.startswith("{", at):
            try:
                document = read_json(text, at, source.name)
            except FormatError:
                pass
            else:
                end, value = document.end, document.value
        yield Part(text[at:end], _may_be_report(value))
        at = next_document(text, end)


def _may_be_report(value: JsonValue) -> bool:
    return isinstance(value, dict) and (
        bool(_KEYS & value.keys()) or any(key.endswith(_ENDS) for key in value)
    )
