"""One crash of a text: its parts as they are told apart, and the report of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum, auto

from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report, ReportKind
from machtrace.model.reported_process import ReportedProcess, ReportedSystem
from machtrace.model.reported_thread import ReportedRegister, ReportedRegisters, ReportedThread
from machtrace.reports.images import ListedImages
from machtrace.reports.swift.crash import exception
from machtrace.reports.swift.frame_lines import LONGEST_LINE, parse_frame_line
from machtrace.reports.swift.frames import FrameMaker
from machtrace.reports.swift.images import parse_image_line
from machtrace.reports.swift.registers import parse_register_line

_THREAD = re.compile(r'Thread (?P<number>[0-9]{1,9})(?: "(?P<name>.*)")?(?P<crashed> crashed)?:')
_PLATFORM = re.compile(r"Platform: (?P<arch>\S{1,40}) (?P<system>.*\S)")
_IMAGES = re.compile(r"Images(?: \((?:[0-9]{1,9} omitted|only mentioned)\))?:")
_PLACE = re.compile(r"[ \t]++at \S.*")
_REGISTERS = "Registers:"
_TOOK = "Backtrace took "
_LINES, _BEFORE, _AFTER = "lines", "lines before", "lines after"
_ELF = ".so"


def thread_heading(line: str) -> re.Match[str] | None:
    """The line that a thread begins with: ``Thread 2 "worker" crashed:``; else None."""
    if not line.startswith("Thread ") or len(line) > LONGEST_LINE:
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
    """The lines of one crash.

    Args:
        reason: why the program crashed, as it is written.
        signal: its number, where that is written.
        before: lines before it.
    """

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

    def take(self, line: str) -> None:
        """The next line, without colours and white space at its end."""
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
            self._take_into_part(line)

    def _take_into_part(self, line: str) -> None:
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
            case _Part.IMAGES if parse_image_line(line[:LONGEST_LINE], is_macho=False) is not None:
                self._images.append(line[:LONGEST_LINE])
            case _Part.HEAD if (match := _PLATFORM.fullmatch(line[:1000])) is not None:
                self._platform = match
            case _:
                self._head.append(line)

    def _is_place(self, line: str) -> bool:
        """Whether it is where the frame above is: a terminal may have no room behind that."""
        frames = self._threads[-1].frames
        if not self._is_after_frame or not frames or len(frames[-1]) + len(line) > LONGEST_LINE:
            return False
        return _PLACE.fullmatch(line) is not None

    def leave(self, lines: list[str]) -> None:
        """Keep lines that follow it."""
        self._after = lines

    def report(self) -> Report:
        """All of it."""
        is_macho = self._is_macho()
        lines = (parse_image_line(line, is_macho=is_macho) for line in self._images)
        images = ListedImages(image for image in lines if image is not None)
        maker = FrameMaker(images)
        threads = tuple(self._thread(one, maker) for one in self._threads)
        details: dict[str, JsonValue] = {}
        for key, kept in ((_BEFORE, self._before), (_LINES, self._head), (_AFTER, self._after)):
            if kept:
                details[key] = list(kept)
        platform = self._platform
        return Report(
            kind=ReportKind.SWIFT,
            process=ReportedProcess(code_type=None if platform is None else platform["arch"]),
            system=ReportedSystem(os_name=None if platform is None else platform["system"]),
            exception=exception(self._reason, self._signal),
            threads=threads,
            images=images.all(),
            details=details,
        )

    def _is_macho(self) -> bool:
        if self._platform is not None:
            return "linux" not in self._platform["system"].lower()
        return not any(_ELF in line for line in self._images)

    def _thread(self, text: _ThreadText, maker: FrameMaker) -> ReportedThread:
        crashed = text.heading["crashed"] is not None
        registers = (*text.registers, *(self._registers if crashed else ()))
        details: dict[str, JsonValue] = {_LINES: text.other} if text.other else {}
        return ReportedThread(
            index=int(text.heading["number"]),
            name=text.heading["name"],
            crashed=crashed,
            frames=maker.frames_of(text.frames),
            registers=ReportedRegisters(registers=registers) if registers else None,
            details=details,
        )
