"""Reader of Apple's crash texts, in any layout.

A text is split line by line: labels, sections, threads, and their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from machtrace.model.report import JsonValue, LanguageException, Report, ReportedImage, ReportKind
from machtrace.reports.crash.frame_lines import FrameLines
from machtrace.reports.crash.header import LABEL, MAX_LABEL_LINE_LENGTH, Header, numbered
from machtrace.reports.crash.label_details import BY_LABEL, put
from machtrace.reports.crash.labels import is_backtrace, is_usual, label_values
from machtrace.reports.crash.layouts import (
    AFTER,
    CALL_GRAPH,
    ENDS,
    IMAGES,
    LAST_EXCEPTION,
    OTHERS,
    PLACES,
    SECTIONS,
    STATE,
    THREADS,
    layout_of,
)
from machtrace.reports.crash.lines import MAX_LINE_LENGTH, read_image
from machtrace.reports.crash.threads import ThreadSections
from machtrace.reports.log_lines import last_words
from machtrace.reports.source import ReportSource

END = "EOF"
"""The last line of iOS texts."""
_PARTS = frozenset({LAST_EXCEPTION, THREADS, STATE, IMAGES, CALL_GRAPH, OTHERS})
_MAX_LABELS = 4096
"""Maximum labels of a text; further ones are stored as lines of the last."""
_PROFILE = "Model"
"""The first label of a Mac's profile, after all sections."""


class TextParts:
    """Collects all lines of a text except images."""

    def __init__(self, threads: ThreadSections) -> None:
        self._threads = threads
        self._items: dict[str, list[list[str]]] = {}
        self._label: str | None = None
        self._last = ""
        self._in_section = False
        self._blanks = 0
        self._is_after_threads = False
        self._order: list[str] = []
        self._seen: set[str] = set()

    def read(self, line: str) -> None:
        """Read the next line."""
        if not line or line.isspace():
            self._threads.end()
            self._blanks += 1
            return
        if line.startswith("Thread ") and (part := self._threads.begin(line)) is not None:
            self._begin(part, is_part=True)
            self._is_after_threads = True
        elif line.startswith(LAST_EXCEPTION + ":"):
            self._threads.begin_exception()
            self._begin(LAST_EXCEPTION, is_part=True)
        elif not self._threads.add(line):
            self._read_label(line)

    def images(self) -> None:
        """Record the position of the images."""
        self._threads.end()
        self._begin(IMAGES, is_part=True)
        self._is_after_threads = True

    def _read_label(self, line: str) -> None:
        match = LABEL.fullmatch(line.rstrip()) if len(line) < MAX_LABEL_LINE_LENGTH else None
        if (
            match is None
            or match["label"] in _PARTS
            or (len(self._items) >= _MAX_LABELS and match["label"] not in self._items)
            or (self._in_section and not self._ends_section(match["label"]))
        ):
            self._continue(line)
            return
        label, value = match["label"], match["value"] or ""
        if value and self._threads.fault(label, value):
            return
        self._begin(label, is_part=False)
        self._items.setdefault(label, []).append([value])
        self._in_section = not value or label in SECTIONS or self._is_after_threads

    def _ends_section(self, label: str) -> bool:
        if label in SECTIONS or label.startswith("Application Specific Backtrace "):
            return True
        if self._is_after_threads:
            return label == _PROFILE and self._blanks > 0 and self._label != _PROFILE
        return label in ENDS and (self._blanks > 0 or self._label == "VM Region Info")

    def _continue(self, line: str) -> None:
        """Read a line that continues the part before it, or stands alone."""
        if line.rstrip() == END:
            return
        if self._label is None or (self._blanks and not self._in_section):
            label = AFTER + (self._last or "nothing")
            self._begin(label, is_part=False)
            self._items.setdefault(label, []).append([line])
            self._in_section = True
            return
        item = self._items[self._label][-1]
        item += [""] * self._blanks
        self._blanks = 0
        item.append(line)

    def _begin(self, label: str, *, is_part: bool) -> None:
        if label not in self._seen:  # a repeated label is written at its first position
            self._order += [""] if self._blanks and self._order else []
            self._order.append(label)
            self._seen.add(label)
        self._blanks = 0
        self._label = None if is_part else label
        if not label.startswith(AFTER):
            self._last = label
        self._in_section = False

    # --- results ---

    def items(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each label with its occurrences: lists of lines."""
        for label, items in self._items.items():
            yield label, ["\n".join(lines) for lines in items]

    @property
    def order(self) -> list[str]:
        """The labels and parts; empty texts for the empty lines between them."""
        return self._order


ORDER = "order"
"""The detail of a report with other labels, or another order, than its layout: all labels, with
empty texts for empty lines.
"""
IMAGE_LINES = "image lines"
"""The detail of lines among the images that are not images: how many images precede, and the line.
"""
_MARK = re.compile(
    r"^(?:Incident Identifier|CrashReporter Key|Hardware Model|Process|Exception Type|Date/Time):",
    re.MULTILINE,
)
_THREAD = re.compile(r"^Thread [0-9]+(?: Crashed)?(?: name)?:", re.MULTILINE)
_STACK = re.compile(
    r"^Thread [0-9]{1,9}(?: Crashed| Highlighted| Attributed)?:[^\n]{0,1000}\n"
    r"0[ \t]{1,8}\S[^\n]{0,400}?[ \t]0x[0-9a-fA-F]{1,16}[ \t]",
    re.MULTILINE,
)
"""A thread's heading and its first frame: in an excerpt of a report."""
_MANY = 3
"""Marks that suffice without an exception or threads."""
_START = re.compile(
    r"^(?:(?P<images>Binary Images):|(?:Incident Identifier|Process):[ \t])", re.MULTILINE
)
_EXAMINED = 1 << 16
_CHUNK = 1 << 20
_IMAGES = "Binary Images:"
_BETWEEN = 3
"""Lines below the heading of images that are searched for the first one."""
_RESPONSIBLE = ("Responsible", "Responsible Process")
_NOTE = "Exception Note"
_CORPSE = "EXC_CORPSE_NOTIFY"


def recognises(source: ReportSource) -> bool:
    """Return whether it has labels first, and threads or images; or is an excerpt."""
    if source.text.lstrip().startswith(("{", "[")):
        return False
    return is_crash_text(source.text) or _is_part(source.text)


def _is_part(text: str) -> bool:
    """Return whether it is an excerpt: threads without a header, or a header alone."""
    if len(_MARK.findall(text[:_EXAMINED])) >= _MANY:
        return True
    return _STACK.search(text) is not None


def is_crash_text(text: str) -> bool:
    """Return the same for a text that may be the body of a file."""
    head = text[:_EXAMINED]
    if len(_MARK.findall(head)) < 2:  # noqa: PLR2004 - one may be anywhere
        return False
    return "Exception Type:" in head or _THREAD.search(text) is not None


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its reports: usually one."""
    text = source.text
    ends = [*_starts(text), len(text)]
    return tuple(read_text(text, start, end) for start, end in zip([0, *ends], ends, strict=False))


def _starts(text: str) -> Iterator[int]:
    """Yield where further reports begin: at their first label, after images."""
    has_images = False
    for match in _START.finditer(text):
        if match["images"] is not None:
            has_images = True
        elif has_images:
            has_images = False
            yield match.start()


def read_text(text: str, start: int = 0, end: int | None = None) -> Report:
    """Parse the report of a text, or of a part of one."""
    end = len(text) if end is None else end
    heading = _image_section(text, start, end)
    images, other_lines, after = _images(text, heading, end)
    warnings: list[str] = []
    frames = FrameLines(images)
    threads = ThreadSections(frames, warnings)
    parts = TextParts(threads)
    for line in _lines(text, start, heading):
        parts.read(line)
    if heading < end:
        parts.images()
        for line in _lines(text, after, end):
            parts.read(line)
    return _report(parts, threads, (*images, *frames.unlisted), other_lines, warnings)


def _image_section(text: str, start: int, end: int) -> int:
    """Return where the images' heading is: the first that an image follows, else the first."""
    first = None
    at = start if text.startswith(_IMAGES, start) else _next_heading(text, start, end)
    while at < end:
        first = at if first is None else first
        if any(read_image(line) is not None for line in _lines_below(text, at, end)):
            return at
        at = _next_heading(text, at, end)
    return end if first is None else first


def _lines_below(text: str, heading: int, end: int) -> Iterator[str]:
    """Yield the next lines, while short enough to be images."""
    end = min(end, heading + MAX_LINE_LENGTH)
    stop = text.find("\n", heading, end)
    for _ in range(_BETWEEN):
        if stop < 0:
            return
        start = stop + 1
        stop = text.find("\n", start, end)
        yield text[start : end if stop < 0 else stop]


def _next_heading(text: str, start: int, end: int) -> int:
    heading = text.find(f"\n{_IMAGES}", start, end)
    return end if heading < 0 else heading + 1


def _lines(text: str, start: int, end: int) -> Iterator[str]:
    """Yield the lines in bounded chunks of text: memory is bounded by the longest line."""
    while start < end:
        stop = text.find("\n", min(start + _CHUNK, end), end)
        stop = end if stop < 0 else stop
        yield from text[start:stop].split("\n")
        start = stop + 1


def _images(
    text: str, heading: int, end: int
) -> tuple[tuple[ReportedImage, ...], list[JsonValue], int]:
    """Return the images, other lines among them, and the end of the section."""
    images: list[ReportedImage] = []
    others: list[JsonValue] = []
    at = text.find("\n", heading, end) + 1 if heading < end else end
    while 0 < at < end:
        stop = text.find("\n", at, end)
        stop = end if stop < 0 else stop
        line = text[at:stop]
        if line.rstrip() == END:
            break
        if line.strip():
            image = read_image(line)
            if image is None:
                others.append([len(images), line])
            else:
                images.append(_identified(image))
        elif images or others:
            break
        at = stop + 1
    return tuple(images), others, at if at > 0 else end


def _identified(image: ReportedImage) -> ReportedImage:
    """Name an image labelled with its bundle identifier after its file."""
    name = image.path.rpartition("/")[2]
    details = dict(image.details)
    if name and name != image.name and "." in image.name and image.arch is None:
        details["CFBundleIdentifier"] = image.name
        image = replace(image, name=name)
    if image.version == "*":
        return replace(image, version=None, details=details)
    return replace(image, details=details) if details else image


def _report(
    parts: TextParts,
    threads: ThreadSections,
    images: tuple[ReportedImage, ...],
    other_lines: list[JsonValue],
    warnings: list[str],
) -> Report:
    label_values = dict(parts.items())
    header = Header()
    for label, values in label_values.items():
        for value in values:
            header.add(label, value)
    crashed = header.crashed_thread
    information = header.application_information()
    report = Report(
        kind=ReportKind.APPLE_CRASH,
        incident=header.incident(),
        process=header.process(),
        system=header.system(),
        exception=header.exception(),
        termination=header.termination(),
        application_information=information,
        language_exception=_thrown(threads.last_exception(), information),
        threads=threads.threads(crashed),
        images=images,
        details=_details(label_values),
        warnings=tuple(warnings),
    )
    return _with_differences(report, label_values, parts.order, threads, other_lines)


def _thrown(
    exception: LanguageException | None, information: tuple[tuple[str, tuple[str, ...]], ...]
) -> LanguageException | None:
    """Return the exception with name and reason from the runtime's last words, if present."""
    words = last_words("\n".join(lines) for _, lines in information)
    if words is None:
        return exception
    name, reason = words
    return replace(exception or LanguageException(), name=name, reason=reason)


def _details(label_values: dict[str, list[str]]) -> dict[str, JsonValue]:
    """Return details with keys of .ips files, as far as they read back unchanged."""
    details: dict[str, JsonValue] = {}
    backtraces: list[JsonValue] = []
    for label, values in label_values.items():
        value = values[0] if len(values) == 1 else ""
        known = BY_LABEL.get(label)
        if known is not None and value:
            parsed = known.parse(value)
            if parsed is not None and known.format(parsed) == value:
                put(details, known.path, parsed)
        elif label == f"Application Specific Backtrace {len(backtraces)}" and value[:1] == "\n":
            backtraces.append(value[1:])
        elif label in _RESPONSIBLE and value:
            name, pid = numbered(value)
            if name is not None and pid is not None:
                details |= {"responsibleProc": name, "responsiblePid": pid}
        elif label == _NOTE and value == _CORPSE:
            details["isCorpse"] = 1
    if backtraces:
        details["asiBacktraces"] = backtraces
    return details


def _with_differences(
    report: Report,
    text_values: dict[str, list[str]],
    order: list[str],
    threads: ThreadSections,
    other_lines: list[JsonValue],
) -> Report:
    """Return the report with the details needed to reproduce the text."""
    layout = layout_of(report)
    written = label_values(report, layout)
    details = dict(report.details)
    for label, values in text_values.items():
        if written.get(label) != values:
            details[label] = values[0] if len(values) == 1 else [*values]
    added = written.keys() - text_values.keys()
    if any(map(is_backtrace, added)):
        details.pop("asiBacktraces", None)
    leftovers = [*threads.leftovers()]
    details |= {label: value for _, label, value in leftovers}
    for part in (THREADS, STATE):
        labels = [label for of, label, _ in leftovers if of == part]
        if not labels:
            continue
        at = order.index(part) + (part == THREADS) if part in order else len(order)
        order = [*order[:at], *labels, *order[at:]]
    if other_lines:
        details[IMAGE_LINES] = other_lines
    # Absent labels are only written if no order is known.
    is_cut = not report.images and IMAGES not in order
    if (
        is_cut
        or added & PLACES[layout].keys()
        or not is_usual(layout, (label for label in order if label))
    ):
        details[ORDER] = [*order]
    return replace(report, details=details)
