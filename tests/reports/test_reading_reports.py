"""Reports of every kind: recognised by their bytes, read whole, hurt by nothing."""

from __future__ import annotations

import codecs
import json
from importlib import import_module

import pytest

from machtrace.errors import ArgumentError, FormatError, MachtraceError
from machtrace.model.report import Report, ReportKind
from machtrace.reports.machtrace_json import reports_json
from machtrace.reports.readers import READERS, read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.writers import FORMATS, write_reports
from tests.support.reports.samples import REPORT_SAMPLES

KINDS = list(REPORT_SAMPLES)
ALSO_RECOGNISED_BY = {
    "crash": ["backtraces.nsthread"],
    "sample": ["backtraces.nsthread"],
    "spindump": ["crash.reader"],
    "sanitizer": ["backtraces.gdb"],
}
"""Later readers of ``READERS`` that would read a kind, too."""
TEXTS = [kind for kind in KINDS if kind not in ("plcrash", "pprof", "otlp", "spool")]


def read(data: bytes) -> tuple[Report, ...]:
    """Return the reports in some bytes."""
    return read_source(ReportSource("given", data)).reports


def test_every_kind_has_a_sample() -> None:
    """Except machtrace's own JSON, which is written from all the others."""
    assert {kind.value for kind in ReportKind} - {"machtrace"} == REPORT_SAMPLES.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_reader_recognises_a_kind(kind: str) -> None:
    """Except those that are listed here, which are tried later."""
    source = ReportSource(kind, REPORT_SAMPLES[kind])
    readers = [name for name in READERS if import_module(name).recognises(source)]

    assert [name.removeprefix("machtrace.reports.") for name in readers[1:]] == (
        ALSO_RECOGNISED_BY.get(kind, [])
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_known_by_its_bytes(kind: str) -> None:
    """The file's name is ignored."""
    assert {report.kind.value for report in read(REPORT_SAMPLES[kind])} == {kind}


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_equals_its_json(kind: str) -> None:
    """Import, export and another import return the same report."""
    reports = read(REPORT_SAMPLES[kind])
    assert read(reports_json(reports).encode()) == reports


@pytest.mark.parametrize("kind", ["ips", "crash"])
def test_apples_formats_come_back_equal(kind: str) -> None:
    """As they were written by the same format."""
    reports = read(REPORT_SAMPLES[kind])
    assert read(write_reports(reports, "apple" if kind == "crash" else kind)) == reports


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(FORMATS))
def test_every_kind_can_be_written_in_every_format(kind: str, name: str) -> None:
    """But for stacks of one moment, which samples have none of."""
    reports = read(REPORT_SAMPLES[kind])
    of_threads = ("text", "stacks-json", "nsthread", "bs", "lldb")
    of_trees = (
        "sample",
        "spindump",
        "microstackshot",
        "folded",
        "speedscope",
        "pprof",
        "otlp",
        "firefox",
    )
    if kind in of_trees and name in of_threads:
        with pytest.raises(ArgumentError, match="sampled trees but no threads"):
            write_reports(reports, name)
    elif FORMATS[name].between is None and len(reports) > 1:
        with pytest.raises(ArgumentError, match="holds one report, not 2"):
            write_reports(reports, name)
        assert write_reports(reports[:1], name)
    else:
        assert write_reports(reports, name)


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize(
    "encode",
    [
        lambda text: codecs.BOM_UTF8 + text.encode(),
        lambda text: codecs.BOM_UTF16_LE + text.encode("utf-16-le"),
        lambda text: text.encode("utf-16-be"),
        lambda text: text.replace("\n", "\r\n").encode(),
    ],
    ids=["utf-8 with a mark", "utf-16", "utf-16 without a mark", "crlf"],
)
def test_encodings_and_line_ends_do_not_matter(kind: str, encode: object) -> None:
    """All are the same report."""
    text = REPORT_SAMPLES[kind].decode()
    assert read(encode(text)) == read(text.encode())


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_report_is_read_as_far_as_it_goes(kind: str) -> None:
    """At any byte there is a report, perhaps with warnings, or one clear error."""
    data = REPORT_SAMPLES[kind]
    for end in range(0, len(data), 7):
        try:
            assert read(data[:end])
        except MachtraceError as error:
            assert error.remedy, error  # noqa: PT017 - where it is none, a report is as good


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0", b" \r\n\t\n"])
def test_empty_files_are_distinguished_from_garbage(data: bytes) -> None:
    """A file of zero bytes is common where a device ran out of room."""
    with pytest.raises(FormatError, match="no content"):
        read(data)


@pytest.mark.parametrize("data", [b"hello", b"\x7fELF\x02", b"[1, 2]", b'{"a": 1}', b"{" * 9000])
def test_other_files_are_refused(data: bytes) -> None:
    """With what would be taken instead."""
    with pytest.raises(FormatError, match="unknown kind of report") as caught:
        read(data)
    assert "callStackSymbols" in caught.value.remedy


def test_undecodable_bytes_are_preserved() -> None:
    """They come back as they were, in text formats; JSON has them escaped."""
    data = REPORT_SAMPLES["crash"].replace(b"worker", b"w\xff\xferker")
    reports = read(data)
    assert b"\xff" not in reports_json(reports).encode()
    assert read(reports_json(reports).encode()) == reports
    assert reports[0].threads[1].name == "w\udcff\udcferker"


@pytest.mark.parametrize("kind", ["ips", "kscrash", "metrickit"])
def test_values_of_other_types_are_preserved(kind: str) -> None:
    """Each value in turn is replaced by others; nothing is lost and nothing fails."""
    documents = [json.loads(part) for part in _documents(REPORT_SAMPLES[kind])]
    for place in _places(documents):
        for value_of_other_type in (None, True, -1, 2**70, 1.5, "odd", [], {}, [[]], {"a": [1]}):
            changed = json.loads(json.dumps(documents))
            _set(changed, place, value_of_other_type)
            data = "\n".join(json.dumps(one) for one in changed).encode()
            try:
                reports = read(data)
            except FormatError:
                continue
            assert read(reports_json(reports).encode()) == reports


def _documents(data: bytes) -> list[str]:
    text = data.decode()
    _, end = json.JSONDecoder().raw_decode(text)
    return [text[:end], text[end:]] if text[end:].strip() else [text]


def _places(value: object) -> list[tuple[object, ...]]:
    paths: list[tuple[object, ...]] = []
    waiting: list[tuple[tuple[object, ...], object]] = [((), value)]
    while waiting:
        path, one = waiting.pop()
        items = one.items() if isinstance(one, dict) else enumerate(one)
        for key, inner in items:
            paths.append((*path, key))
            if isinstance(inner, dict | list):
                waiting.append(((*path, key), inner))
    return paths[::3]


def _set(value: object, place: tuple[object, ...], odd: object) -> None:
    for key in place[:-1]:
        value = value[key]
    value[place[-1]] = odd
