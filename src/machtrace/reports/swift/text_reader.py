"""Reader of the crashes in a text: a log, or a terminal's output.

Images are lines of ``0x1000–0x5000 0123abcd name /path/name``; registers have a line each, and one
line of flags and one of segments.
"""

from __future__ import annotations

import re
from dataclasses import field
from enum import Enum, auto

from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.report import (
    JsonValue,
    Report,
    ReportedImage,
    ReportedProcess,
    ReportedRegister,
    ReportedRegisters,
    ReportedSystem,
    ReportedThread,
    ReportKind,
)
from machtrace.reports.backtraces import sanitizer as sanitizer_reader
from machtrace.reports.images import ListedImages, identifier
from machtrace.reports.log_lines import LINES, log_lines
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.captures import lost_frames_of
from machtrace.reports.swift.frames import MAX_LINE_LENGTH, FrameMaker, exception, parse_frame_line

_IMAGE = re.compile(
    r"[ \t]*+(?P<start>0x[0-9a-fA-F]{1,16})(?:\u2013|-)(?P<end>0x[0-9a-fA-F]{1,16})[ \t]++"
    r"(?P<identifier>(?:[0-9a-fA-F]{2}){1,64}|<no build ID>)[ \t]++(?P<rest>\S.*)"
)
_PATH = re.compile(r"(?<![ \t])[ \t]++(?=/)")


def parse_image_line(line: str, *, is_macho: bool) -> ReportedImage | None:
    """Parse an image's line; None if it is not one.

    Args:
        line: without its end, of at most some thousand characters.
        is_macho: see :func:`~machtrace.reports.images.identifier`.
    """
    match = _IMAGE.fullmatch(line)
    if match is None:
        return None
    start, end = int(match["start"], 16), int(match["end"], 16)
    name, *paths = _PATH.split(match["rest"].rstrip(), maxsplit=1)
    return ReportedImage(
        uuid=identifier(match["identifier"], is_macho=is_macho),
        name=name,
        path=paths[0] if paths else "",
        load_address=Avma(start),
        size=end - start if end >= start else None,
    )


_MAX_LENGTH = 1024
_REGISTER = re.compile(
    r"[ \t]*+(?P<name>[a-z][a-z0-9]{0,7})[ \t]++(?P<value>0x[0-9a-fA-F]{1,16})"
    r"(?:[ \t]++(?P<rest>\S.*))?"
)
_SEGMENTS = re.compile(r"(?:[ \t]*+[a-z]{2}:? 0x[0-9a-fA-F]{1,4}\)?){2,8}[ \t]*")
_SEGMENT = re.compile(r"([a-z]{2}):? (0x[0-9a-fA-F]{1,4})")


def parse_register_line(line: str) -> tuple[ReportedRegister, ...]:
    """Parse the registers of a line; none if it has none.

    What follows a value (the bytes that it points to, the number, names of flags) is its
    description.
    """
    if len(line) > _MAX_LENGTH:
        return ()
    if _SEGMENTS.fullmatch(line):
        return tuple(
            ReportedRegister(name, int(value, 16)) for name, value in _SEGMENT.findall(line)
        )
    match = _REGISTER.fullmatch(line)
    if match is None:
        return ()
    return (ReportedRegister(match["name"], int(match["value"], 16), match["rest"]),)


_THREAD = re.compile(r'Thread (?P<number>[0-9]{1,9})(?: "(?P<name>.*)")?(?P<crashed> crashed)?:')
_PLATFORM = re.compile(r"Platform: (?P<arch>\S{1,40}) (?P<system>.*\S)")
_IMAGES = re.compile(r"Images(?: \((?:[0-9]{1,9} omitted|only mentioned)\))?:")
_PLACE = re.compile(r"[ \t]++at \S.*")
_REGISTERS = "Registers:"
_TOOK = "Backtrace took "
_BEFORE, _AFTER = "lines before", "lines after"
_ELF = ".so"


def thread_heading(line: str) -> re.Match[str] | None:
    """Match the line that a thread begins with: ``Thread 2 "worker" crashed:``."""
    if not line.startswith("Thread ") or len(line) > MAX_LINE_LENGTH:
        return None
    return _THREAD.fullmatch(line)


@dataclass(slots=True)
class _ThreadText:
    heading: re.Match[str]
    frames: list[str] = field(default_factory=list)
    registers: list[ReportedRegister] = field(default_factory=list)
    other: list[JsonValue] = field(default_factory=list)


class _Part(Enum):
    HEAD = auto()
    THREADS = auto()
    REGISTERS = auto()
    IMAGES = auto()


class CrashText:
    """The lines of one crash."""

    def __init__(self, reason: str, signal: int | None, before: list[str]) -> None:
        self._reason, self._signal, self._before = reason, signal, before
        self._after: list[str] = []
        self._part = _Part.HEAD
        self._is_after_frame = False
        self._head: list[JsonValue] = []
        self._threads: list[_ThreadText] = []
        self._registers: list[ReportedRegister] = []
        self._images: list[str] = []
        self._platform: re.Match[str] | None = None

    def read(self, line: str) -> None:
        """Read the next line, without colours and trailing space."""
        if not line:
            return
        if (heading := thread_heading(line)) is not None:
            self._part = _Part.THREADS
            self._threads.append(_ThreadText(heading))
        elif line == _REGISTERS:
            self._part = _Part.REGISTERS
        elif _IMAGES.fullmatch(line[:100]) is not None:
            self._part = _Part.IMAGES
            self._head.append(line)
        elif line.startswith(_TOOK):
            self._part = _Part.HEAD
            self._head.append(line)
        else:
            self._read_into_part(line)

    def _read_into_part(self, line: str) -> None:
        match self._part:
            case _Part.THREADS:
                thread = self._threads[-1]
                if registers := () if thread.frames else parse_register_line(line):
                    thread.registers.extend(registers)
                elif self._is_place(line):
                    thread.frames[-1] += " " + line.strip()
                    self._is_after_frame = False
                else:
                    self._is_after_frame = parse_frame_line(line, ()) is not None
                    (thread.frames if self._is_after_frame else thread.other).append(line)
            case _Part.REGISTERS if registers := parse_register_line(line):
                self._registers.extend(registers)
            case _Part.IMAGES if (
                parse_image_line(line[:MAX_LINE_LENGTH], is_macho=False) is not None
            ):
                self._images.append(line[:MAX_LINE_LENGTH])
            case _Part.HEAD if (match := _PLATFORM.fullmatch(line[:1000])) is not None:
                self._platform = match
            case _:
                self._head.append(line)

    def _is_place(self, line: str) -> bool:
        """Return whether it is the location of the frame above: a terminal may have wrapped it."""
        frames = self._threads[-1].frames
        if not self._is_after_frame or not frames or len(frames[-1]) + len(line) > MAX_LINE_LENGTH:
            return False
        return _PLACE.fullmatch(line) is not None

    def add_trailing(self, lines: list[str]) -> None:
        """Store the lines that follow it."""
        self._after = lines

    def report(self) -> Report:
        """Return the report."""
        is_macho = self._is_macho()
        lines = (parse_image_line(line, is_macho=is_macho) for line in self._images)
        images = ListedImages(image for image in lines if image is not None)
        maker = FrameMaker(images)
        threads = tuple(self._thread(thread, maker) for thread in self._threads)
        details: dict[str, JsonValue] = {}
        for key, texts in ((_BEFORE, self._before), (LINES, self._head), (_AFTER, self._after)):
            if texts:
                details[key] = list(texts)
        platform = self._platform
        return Report(
            kind=ReportKind.SWIFT,
            process=ReportedProcess(code_type=None if platform is None else platform["arch"]),
            system=ReportedSystem(os_name=None if platform is None else platform["system"]),
            exception=exception(self._reason, self._signal),
            threads=threads,
            images=images.all(),
            details=details,
            warnings=lost_frames_of(threads),
        )

    def _is_macho(self) -> bool:
        if self._platform is not None:
            return "linux" not in self._platform["system"].lower()
        return not any(_ELF in line for line in self._images)

    def _thread(self, text: _ThreadText, maker: FrameMaker) -> ReportedThread:
        crashed = text.heading["crashed"] is not None
        registers = (*text.registers, *(self._registers if crashed else ()))
        details: dict[str, JsonValue] = {LINES: text.other} if text.other else {}
        return ReportedThread(
            index=int(text.heading["number"]),
            name=text.heading["name"],
            crashed=crashed,
            frames=maker.frames_of(text.frames),
            registers=ReportedRegisters(registers=registers) if registers else None,
            details=details,
        )


# A terminal shows a coloured sign before the reason; elsewhere it is between three stars.
_REASON = re.compile(
    r"(?:\*\*\* |\N{BOMB} ?)?"
    r"(?:Program crashed: (?P<crash>[^\n]{1,1000}?)|(?P<failure>Swift runtime failure: .{1,1000}?))"
    r"(?: \*\*\*)?"
)
_BACKTRACING = re.compile(r"[^\n]{0,40}?\bSignal (?P<signal>[0-9]{1,3}): Backtracing from 0x.*+")
_MARKS = ("Program crashed: ", "Swift runtime failure: ")
_MARK = re.compile(rf"([ \t]*+)(?:\*\*\* |\N{{BOMB}} ?)?(?:{'|'.join(_MARKS)})")


def recognises(source: ReportSource) -> bool:
    """Return whether it has the reason of a crash, and threads, as Swift's runtime writes them."""
    text = source.text
    places = [place for mark in _MARKS if (place := text.find(mark)) >= 0]
    if not places:
        return False
    start = text.rfind("\n", 0, min(places)) + 1
    has_reason = False
    for line in log_lines(text[start:], _MARK):
        if has_reason and thread_heading(line) is not None:
            return True
        has_reason = has_reason or _reason(line) is not None
    return False


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return a report of each crash; text before a crash is stored with it.

    If Swift's compiler crashes, LLVM first writes a stack: that is a report of its own.

    Raises:
        FormatError: it has none.
    """
    dumps: list[Report] = []
    crashes: list[CrashText] = []
    before: list[str] = []
    signal: int | None = None
    for line in log_lines(source.text, _MARK):
        if (match := _BACKTRACING.fullmatch(line)) is not None:
            # The next crash begins: what follows does not belong to the last one.
            signal = int(match["signal"])
            before.append(line)
        elif (reason := _reason(line)) is not None:
            dump = _stack_dump(source.name, before)
            dumps += dump
            crashes.append(CrashText(reason, signal, [] if dump else before))
            before, signal = [], None
        elif crashes and not before:
            crashes[-1].read(line)
        elif line.strip():
            before.append(line)
    if not crashes:
        raise source.error("it has no crash")
    if before:
        crashes[-1].add_trailing(before)
    return (*dumps, *(crash.report() for crash in crashes))


def _stack_dump(name: str, lines: list[str]) -> tuple[Report, ...]:
    """Return the reports of LLVM or a sanitizer in these lines, if any."""
    source = ReportSource(name, "\n".join(lines).encode("utf-8", "surrogateescape"))
    return sanitizer_reader.read(source) if sanitizer_reader.recognises(source) else ()


def _reason(line: str) -> str | None:
    """Return why a program crashed; None if the line does not state it."""
    if not any(mark in line for mark in _MARKS) or "Backtracing from" in line:
        return None
    match = _REASON.fullmatch(line)
    return None if match is None else match["crash"] or match["failure"]
