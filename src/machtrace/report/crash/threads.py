"""Threads: headings, frames, and the registers of the one that crashed."""

from __future__ import annotations

import re
from dataclasses import replace

from machtrace.model.json_value import JsonValue
from machtrace.model.reported_frame import Adjustment, ReportedFrame
from machtrace.model.reported_process import LanguageException
from machtrace.model.reported_thread import ReportedRegister, ReportedRegisters, ReportedThread
from machtrace.report.crash.lines import LONGEST_LINE, FrameLines, read_registers

_NAME = re.compile(r"Thread (?P<index>[0-9]{1,6}) name:(?P<name>.*)")
_HEADING = re.compile(
    r"Thread (?P<index>[0-9]{1,6})(?P<crashed> Crashed)?:(?:: ?(?P<name>.*?))?[ \t]*"
)
_STATE = re.compile(r"Thread (?P<index>[0-9]{1,6}) crashed with (?P<state>.*?):[ \t]*")
_QUEUE = "Dispatch queue: "
_UNSYMBOLICATED = re.compile(r"\(?(?P<addresses>0x[0-9a-fA-F]+(?:[ \t]+0x[0-9a-fA-F]+)*)\)?")
_DESCRIPTION = re.compile(r"(?P<name>esr|err|far): 0x[0-9a-fA-F]+ (?P<said>[^\s0-9].*)")
_FLAVORS = {
    "ARM Thread State (64-bit)": "ARM_THREAD_STATE64",
    "ARM Thread State (32-bit)": "ARM_THREAD_STATE",
    "X86 Thread State (64-bit)": "x86_THREAD_STATE",
}


class ThreadSections:
    """Takes the sections of threads, in the text's order."""

    def __init__(self, frames: FrameLines, warnings: list[str]) -> None:
        self._frames = frames
        self._warnings = warnings
        self._threads: dict[int, ReportedThread] = {}
        self._names: dict[int, str] = {}
        self._registers: dict[int, ReportedRegisters] = {}

    def read(self, lines: list[str], index: int, end: int) -> int:
        """A section that begins at ``index``; where it ends, or ``index`` where none begins."""
        line = lines[index]
        if len(line) > LONGEST_LINE:
            return index
        if (match := _NAME.fullmatch(line)) is not None:
            self._names[int(match["index"])] = match["name"]
            return index + 1
        if (match := _STATE.fullmatch(line)) is not None:
            return self._state(int(match["index"]), match["state"], lines, index + 1, end)
        if (match := _HEADING.fullmatch(line)) is not None:
            return self._thread(match, lines, index + 1, end)
        return index

    def _thread(self, match: re.Match[str], lines: list[str], index: int, end: int) -> int:
        number = int(match["index"])
        frames, index, other = self._stack(lines, index, end, Adjustment.EXACT)
        name, queue = _name_and_queue(match["name"] or self._names.pop(number, ""))
        if number in self._threads:
            self._warnings.append(f"two threads have the number {number}; both were kept")
            number = max(self._threads) + 1
        details: dict[str, JsonValue] = {"lines": [*other]} if other else {}
        self._threads[number] = ReportedThread(
            index=number,
            name=name,
            queue=queue,
            crashed=match["crashed"] is not None,
            frames=frames,
            details=details,
        )
        return index

    def _stack(
        self, lines: list[str], index: int, end: int, innermost: Adjustment
    ) -> tuple[tuple[ReportedFrame, ...], int, list[str]]:
        """Frames up to an empty line, and the lines among them that are none."""
        frames: list[ReportedFrame] = []
        other: list[str] = []
        adjustment = innermost
        while index < end and lines[index].strip():
            frame = self._frames.read(lines[index], adjustment)
            if frame is None:
                other.append(lines[index])
            else:
                frames.append(frame)
                if not frame.is_inline:
                    adjustment = Adjustment.RETURN
            index += 1
        return tuple(frames), index, other

    def last_exception(
        self, lines: list[str], index: int, end: int
    ) -> tuple[LanguageException, int]:
        """The section *Last Exception Backtrace*: frames, or their bare addresses in brackets."""
        frames, index, other = self._stack(lines, index, end, Adjustment.RETURN)
        details: dict[str, JsonValue] = {}
        bare = _UNSYMBOLICATED.fullmatch(" ".join(other).strip()) if len(other) == 1 else None
        if bare is not None and not frames:
            words = bare["addresses"].split()
            frames = tuple(self._frames.at(int(word[:18], 16)) for word in words)
        elif other:
            details["lines"] = [*other]
        return LanguageException(frames=frames, details=details), index

    def _state(self, number: int, state: str, lines: list[str], index: int, end: int) -> int:
        found: list[ReportedRegister] = []
        other: list[JsonValue] = []
        while index < end and lines[index].strip():
            row = [ReportedRegister(name, value) for name, value in read_registers(lines[index])]
            said = _DESCRIPTION.search(lines[index]) if len(lines[index]) < LONGEST_LINE else None
            if said is not None and row:
                row[-1] = row[-1]._replace(description=said["said"])
            if not row:
                other.append(lines[index])
            found += row
            index += 1
        self._registers[number] = ReportedRegisters(
            registers=tuple(found),
            flavor=_FLAVORS.get(state, state),
            details={"lines": other} if other else {},
        )
        return index

    def threads(self, crashed: int | None) -> tuple[ReportedThread, ...]:
        """All of them; ``crashed`` is the one that the header names."""
        if crashed is not None and any(thread.crashed for thread in self._threads.values()):
            crashed = None
        return tuple(
            replace(
                thread,
                crashed=thread.crashed or thread.index == crashed,
                registers=self._registers.get(thread.index),
            )
            for thread in self._threads.values()
        )


def _name_and_queue(text: str) -> tuple[str | None, str | None]:
    before, mark, queue = text.partition(_QUEUE)
    name = before.strip()
    return name or None, queue.strip() if mark else None
