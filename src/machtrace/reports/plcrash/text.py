"""PLCrashReporter's text in Apple's format.

Source: ``PLCrashReportTextFormatter.m``. Its ``%18#llx`` is implemented as eighteen columns with
``0x``, as Apple's formatter does; not compared with a text from a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from machtrace.model.report import (
    NameSource,
    Report,
    ReportedFrame,
    ReportedImage,
    ReportedSymbol,
    ReportedThread,
    ReportKind,
)
from machtrace.model.text import MAX_IMAGE_NAME_LENGTH, printable
from machtrace.reports.crash.frames import numbered

_ROW = 4
_NARROW = frozenset({"arm", "armv6", "armv7", "armv7s", "armv7k", "i386"})
_CODE_TYPES = {
    "arm64": "ARM-64",
    "arm64e": "ARM-64",
    "x86_64": "X86-64",
    "x86_64h": "X86-64",
    "i386": "X86",
    "ppc": "PPC",
}


def plcrash_text(report: Report) -> str:
    """Return the file's text."""
    return "".join(f"{line}\n" for line in _Text(report).lines())


class _Text:
    def __init__(self, report: Report) -> None:
        self._report = report
        program = next(
            (image for image in report.images if image.path and image.path == report.process.path),
            report.images[0] if report.images else ReportedImage(),
        )
        self._program = program
        self._arch = program.arch or report.process.code_type or ""
        self._digits = 8 if self._arch in _NARROW else 16
        known = "ARM" if self._arch.startswith("armv") else self._arch or "Unknown"
        self._code_type = _CODE_TYPES.get(self._arch, known)

    def lines(self) -> Iterator[str]:
        report = self._report
        yield from self._header()
        yield ""
        yield from self._exception()
        yield ""
        thrown = report.language_exception
        if thrown is not None:
            name, reason = _shown(thrown.name), _shown(thrown.reason)
            yield "Application Specific Information:"
            yield f"*** Terminating app due to uncaught exception '{name}', reason: '{reason}'"
            yield ""
            if thrown.frames:
                yield "Last Exception Backtrace:"
                yield from self._frames(thrown.frames)
                yield ""
        for thread in report.threads:
            yield f"Thread {thread.index}{' Crashed' if thread.crashed else ''}:"
            yield from self._frames(thread.frames)
            yield ""
        if report.crashed_thread is not None:
            yield from self._registers(report.crashed_thread)
        yield "Binary Images:"
        listed = (image for image in report.images if not image.is_only_named)
        yield from map(self._image, sorted(listed, key=lambda image: image.load_address or 0))

    def _header(self) -> Iterator[str]:
        process, system = self._report.process, self._report.system
        yield f"Incident Identifier: {_shown(self._report.incident.id)}"
        yield f"Hardware Model:      {_shown(system.model)}"
        if process.name is not None:
            yield f"Process:         {printable(process.name)} [{_shown(process.pid)}]"
            yield f"Path:            {_shown(process.path)}"
        yield f"Identifier:      {_shown(process.identifier)}"
        if process.version is None:
            yield f"Version:         {_shown(process.build)}"
        else:
            yield f"Version:         {printable(process.version)} ({_shown(process.build)})"
        yield f"Code Type:       {self._code_type}"
        if process.parent is not None or process.parent_pid is not None:
            yield f"Parent Process:  {_shown(process.parent)} [{_shown(process.parent_pid)}]"
        yield ""
        yield f"Date/Time:       {_shown(self._report.incident.time)}"
        yield f"OS Version:      {_shown(system.os_name)} ({_shown(system.os_build)})"
        yield "Report Version:  104"

    def _exception(self) -> Iterator[str]:
        exception, crashed = self._report.exception, self._report.crashed_thread
        if exception is not None:
            yield f"Exception Type:  {_shown(exception.signal or exception.type)}"
            yield f"Exception Codes: {_shown(exception.codes)}"
        if crashed is not None:
            yield f"Crashed Thread:  {crashed.index}"

    def _frames(self, frames: Sequence[ReportedFrame]) -> Iterator[str]:
        for number, frame in numbered(frames):
            image = None if frame.image is None else self._report.images[frame.image]
            image_name = "" if image is None else image.name[:MAX_IMAGE_NAME_LENGTH]
            name = printable(image_name) or "???"
            base = 0 if image is None or image.load_address is None else image.load_address
            address = frame.address if frame.address is not None else base + (frame.offset or 0)
            function = f"0x{base:x} + {address - base}"
            if frame.symbol is not None:
                function = f"{printable(self._spelt(frame.symbol))} + {frame.symbol.offset or 0}"
            yield f"{number:<4d}{name:<35s} 0x{address:0{self._digits}x} {function}"

    def _spelt(self, symbol: ReportedSymbol) -> str:
        """Return a function's name without Mach-O's underscore, which only its own files have."""
        is_linkage_name = symbol.source is NameSource.REPORT
        if is_linkage_name and self._report.kind is ReportKind.PLCRASH:
            return symbol.name.removeprefix("_")
        return symbol.name

    def _registers(self, thread: ReportedThread) -> Iterator[str]:
        if thread.registers is None:
            return
        yield f"Thread {thread.index} crashed with {self._code_type} Thread State:"
        registers = thread.registers.registers
        for first in range(0, len(registers), _ROW):
            row = registers[first : first + _ROW]
            yield "".join(f"{self._name(one.name):>6s}: 0x{one.value:016x} " for one in row)
        yield ""

    def _name(self, name: str) -> str:
        return "ip" if name == "r12" and self._code_type == "ARM" else printable(name)

    def _image(self, image: ReportedImage) -> str:
        base = image.load_address or 0
        ends = f"{base:>#18x} - {base + max(1, image.size or 0) - 1:>#18x}"
        mark = "+" if image == self._program else " "
        uuid = "???" if image.uuid is None else image.uuid.hex
        name, arch = printable(image.name) or "???", image.arch or "???"
        return f"{ends} {mark}{name} {arch}  <{uuid}> {printable(image.path) or '???'}"


def _shown(value: object) -> str:
    return "???" if value is None else printable(str(value))
