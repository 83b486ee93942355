"""Apple's text of a crash, of any report version, as one report."""

from __future__ import annotations

import re
from dataclasses import replace

from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report, ReportKind
from machtrace.model.reported_image import ReportedImage
from machtrace.model.reported_process import LanguageException
from machtrace.report.crash.header import Header
from machtrace.report.crash.lines import FrameLines, read_image
from machtrace.report.crash.threads import ThreadSections
from machtrace.report.source import ReportSource

_MARK = re.compile(
    r"^(?:Incident Identifier|CrashReporter Key|Hardware Model|Process|Exception Type|Date/Time):",
    re.MULTILINE,
)
_THREAD = re.compile(r"^Thread [0-9]+(?: Crashed)?(?: name)?:", re.MULTILINE)
_LOOKED_AT = 1 << 16
_IMAGES = "Binary Images:"
_LAST_EXCEPTION = "Last Exception Backtrace:"


def recognises(source: ReportSource) -> bool:
    """Whether labels of such a text come first, and threads or images follow."""
    if source.text.lstrip().startswith(("{", "[")):
        return False
    head = source.text[:_LOOKED_AT]
    if len(_MARK.findall(head)) < 2:  # noqa: PLR2004 - one may be anywhere
        return False
    return _THREAD.search(source.text) is not None or "Exception Type:" in head


def read(source: ReportSource) -> tuple[Report, ...]:
    """The one report in it."""
    lines = source.text.split("\n")
    images, after = _images(lines)
    warnings: list[str] = []
    frames = FrameLines(images)
    header = Header()
    threads = ThreadSections(frames, warnings)
    exception: LanguageException | None = None
    index = 0
    end = _start_of_images(lines)
    while index < end:
        line = lines[index]
        if line.startswith(_LAST_EXCEPTION):
            exception, index = threads.last_exception(lines, index + 1, end)
        elif line.startswith("Thread ") and (moved := threads.read(lines, index, end)) > index:
            index = moved
        else:
            header.read(line)
            index += 1
    report = Report(
        kind=ReportKind.APPLE_CRASH,
        incident=header.incident(),
        process=header.process(),
        system=header.system(),
        exception=header.exception(),
        termination=header.termination(),
        language_exception=exception,
        application_information=header.application_information(),
        threads=threads.threads(header.crashed_thread),
        images=images,
        warnings=tuple(warnings),
    )
    details: dict[str, JsonValue] = header.details()
    if after:
        details["after images"] = after
    return (replace(report, details=details),)


def _start_of_images(lines: list[str]) -> int:
    for index, line in enumerate(lines):
        if line.startswith(_IMAGES):
            return index
    return len(lines)


def _images(lines: list[str]) -> tuple[tuple[ReportedImage, ...], str]:
    """The images, and the text after them."""
    start = _start_of_images(lines) + 1
    images: list[ReportedImage] = []
    while start < len(lines) and (image := read_image(lines[start])) is not None:
        images.append(image)
        start += 1
    after = "\n".join(lines[start:]).strip("\n")
    return tuple(images), "" if after == "EOF" else after.removesuffix("\n\nEOF")
