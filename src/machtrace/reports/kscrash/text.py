"""KSCrash's text in Apple's format.

Reports of other kinds are written with what they have in common with KSCrash's. Time zones are
those of iOS' ``NSTimeZone.abbreviationDictionary``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone

from machtrace.model.report import (
    JsonValue,
    Report,
    ReportedFrame,
    ReportedImage,
    ReportedRegister,
    ReportedThread,
    ReportKind,
)
from machtrace.model.text import MAX_IMAGE_NAME_LENGTH, printable
from machtrace.reports.crash.frames import numbered
from machtrace.reports.json_writer import as_text, indented

_ZONES: dict[float, tuple[str, ...]] = {
    -10: ("HST",),
    -9: ("AKST",),
    -8: ("AKDT", "PST"),
    -7: ("MST", "PDT"),
    -6: ("CST", "MDT"),
    -5: ("CDT", "COT", "EST", "PET"),
    -4: ("AST", "CLT", "EDT"),
    -3.5: ("NST",),
    -3: ("ADT", "ART", "BRT", "CLST"),
    -2.5: ("NDT",),
    -2: ("BRST",),
    0: ("GMT", "UTC", "WET"),
    1: ("BST", "CET", "WAT", "WEST"),
    2: ("CAT", "CEST", "EET"),
    3: ("EAT", "EEST", "MSK", "TRT"),
    4: ("GST", "MSD"),
    5: ("PKT",),
    5.5: ("IST",),
    6: ("BDT",),
    7: ("ICT", "WIT"),
    8: ("HKT", "PHT", "SGT"),
    9: ("JST", "KST"),
    12: ("NZST",),
    13: ("NZDT",),
}
_HOURS = {name: hours for hours, names in _ZONES.items() for name in names}


def local_time(text: str, zone: str | None) -> str:
    """Convert a UTC time to ``zone``, in milliseconds; unchanged if the zone is unknown.

    Args:
        text: as :func:`~machtrace.reports.kscrash.reader.read_time` returns it.
        zone: an abbreviation, or ``GMT+2``.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    there = moment.astimezone(timezone(_offset(zone)))
    milliseconds = there.microsecond // 1000
    return f"{there:%Y-%m-%d %H:%M:%S}.{milliseconds:03d} {there:%z}"


def _offset(zone: str | None) -> timedelta:
    if zone is None:
        return timedelta()
    name, sign, hours = zone.partition("+")
    if not sign:
        name, sign, hours = zone.partition("-")
    if name == "GMT" and hours:
        whole, _, minutes = hours.partition(":")
        if whole.isdecimal() and (not minutes or minutes.isdecimal()) and len(hours) < 6:  # noqa: PLR2004 - 12:45
            offset = timedelta(hours=int(whole) % 24, minutes=int(minutes or 0) % 60)
            return -offset if sign == "-" else offset
    return timedelta(hours=_HOURS.get(zone, 0))


_X86 = "eax ebx ecx edx edi esi ebp esp ss eflags eip cs ds es fs gs"
_X86_64 = "rax rbx rcx rdx rdi rsi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15 rip rflags cs fs gs"
_ORDERS: dict[str, tuple[str, ...]] = {
    "ARM": (*(f"r{number}" for number in range(12)), "ip", "sp", "lr", "pc", "cpsr"),
    "ARM-64": (*(f"x{number}" for number in range(29)), "fp", "lr", "sp", "pc", "cpsr"),
    "X86": tuple(_X86.split()),
    "X86-64": tuple(_X86_64.split()),
}
_ROW = 4
_DEADLOCK = "deadlock"
_OBJECT = "referenced_object"


def kscrash_text(report: Report) -> str:
    """Return the file's text."""
    return "".join(f"{line}\n" for line in _Text(report).lines())


def _code_type(name: str | None) -> str:
    """Return ``ARM-64`` and similar for a code type."""
    text = (name or "").lower()
    if text.startswith(("arm64", "arm-64")):
        return "ARM-64"
    if text.startswith("arm"):
        return "ARM"
    if text.startswith(("x86_64", "x86-64")):
        return "X86-64"
    return "X86" if text.startswith(("x86", "i386")) else name or "???"


class _Text:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._code_type = _code_type(report.process.code_type)
        self._is_of_kscrash = report.kind is ReportKind.KSCRASH
        self._digits = 16 if self._code_type.endswith("64") else 8

    def lines(self) -> Iterator[str]:
        yield from self._header()
        yield ""
        yield from self._error()
        yield ""
        for thread in self._report.threads:
            yield from self._thread(thread)
            yield ""
        crashed = self._report.crashed_thread
        if crashed is not None and (crashed.registers is not None or self._is_of_kscrash):
            yield f"Thread {crashed.index} crashed with {self._code_type} Thread State:"
            yield from self._registers(
                () if crashed.registers is None else crashed.registers.registers
            )
            yield ""
        yield "Binary Images:"
        listed = (image for image in self._report.images if not image.is_only_named)
        yield from map(self._image, listed)
        yield ""
        yield from self._extra(crashed)

    def _header(self) -> Iterator[str]:
        report = self._report
        incident, process, system = report.incident, report.process, report.system
        zone = _inner(report.details, "system").get("time_zone")
        time = local_time(incident.time or "", zone if isinstance(zone, str) else None)
        yield f"Incident Identifier: {_shown(incident.id)}"
        yield f"CrashReporter Key:   {_shown(system.crash_reporter_key)}"
        yield f"Hardware Model:      {_shown(system.model)}"
        yield f"Process:         {_shown(process.name)} [{_shown(process.pid)}]"
        yield f"Path:            {_shown(process.path)}"
        yield f"Identifier:      {_shown(process.identifier)}"
        yield f"Version:         {_shown(process.version)} ({_shown(process.build)})"
        yield f"Code Type:       {self._code_type}"
        yield f"Parent Process:  {_shown(process.parent or '?')} [{_shown(process.parent_pid)}]"
        yield ""
        yield f"Date/Time:       {time}"
        yield f"OS Version:      {_shown(system.os_name)} ({_shown(system.os_build)})"
        yield "Report Version:  104"

    def _error(self) -> Iterator[str]:
        exception = self._report.exception
        error = _error(self._report)
        if exception is not None:
            kind = exception.type or _inner(error, "mach").get("exception", 0)
            signal = exception.signal or _inner(error, "signal").get("signal", 0)
            code = exception.subtype or f"0x{(exception.raw_codes or (0,))[0]:08x}"
            yield f"Exception Type:  {_shown(kind)} ({_shown(signal)})"
            yield f"Exception Codes: {code} at 0x{exception.address or 0:0{self._digits}x}"
        crashed = self._report.crashed_thread
        yield f"Crashed Thread:  {0 if crashed is None else crashed.index}"
        thrown = self._report.language_exception
        if thrown is not None:
            name, reason = _shown(thrown.name), _shown(thrown.reason)
            yield ""
            yield "Application Specific Information:"
            yield f"*** Terminating app due to uncaught exception '{name}', reason: '{reason}'"
        elif _is_zombie(self._report):
            last = _last_exception(self._report)
            name, reason = _shown(last.get("name")), _shown(last.get("reason"))
            yield ""
            yield "Application Specific Information:"
            yield f"*** Terminating app due to uncaught exception '{name}', reason: '{reason}'"
            yield (
                "NOTE: This exception has been deallocated! Stack trace is crash from attempting to"
                " access this zombie exception."
            )
        elif self._report.incident.kind == _DEADLOCK:
            yield ""
            yield "Application main thread deadlocked"

    def _thread(self, thread: ReportedThread) -> Iterator[str]:
        if thread.name is not None:
            yield f"Thread {thread.index} name:  {printable(thread.name)}"
        elif thread.queue is not None:
            yield f"Thread {thread.index} name:  Dispatch queue: {printable(thread.queue)}"
        yield f"Thread {thread.index}{' Crashed' if thread.crashed else ''}:"
        yield from (self._frame(number, frame) for number, frame in numbered(thread.frames))

    def _frame(self, number: int, frame: ReportedFrame) -> str:
        image = None if frame.image is None else self._report.images[frame.image]
        base = 0 if image is None or image.load_address is None else image.load_address
        address = frame.address if frame.address is not None else base + (frame.offset or 0)
        name = "???" if image is None else printable(image.name[:MAX_IMAGE_NAME_LENGTH])
        where = f"0x{base:x} + {address - base}"
        symbol = ""
        if frame.symbol is not None:
            into = "" if frame.symbol.offset is None else f" + {frame.symbol.offset}"
            function = f"{printable(frame.symbol.name)}{into}"
            # KSCrash knows both offsets; without one of them, the line is Apple's.
            is_placed = image is None or image.load_address is not None or frame.offset is not None
            if into and is_placed:
                symbol = f" ({function})"
            else:
                where = function
        return f"{number:<4d}{name:<31s} 0x{address:0{self._digits}x} {where}{symbol}"

    def _registers(self, registers: Sequence[ReportedRegister]) -> Iterator[str]:
        known = {
            register.name: register for register in registers if "group" not in register.details
        }
        if not known and self._is_of_kscrash:  # which has zeros for what was not recorded
            order = _ORDERS.get(self._code_type, ())
            known = {name: ReportedRegister(name, 0) for name in order}
        names = [name for name in _ORDERS.get(self._code_type, ()) if name in known]
        names += [name for name in known if name not in names]
        for first in range(0, len(names), _ROW):
            row = (known[name] for name in names[first : first + _ROW])
            yield "".join(
                f"{register.name:>6s}: 0x{register.value:0{self._digits}x} " for register in row
            )

    def _image(self, image: ReportedImage) -> str:
        base = image.load_address or 0
        width = self._digits + 2
        ends = f"{base:>#{width}x} - {base + max(1, image.size or 1) - 1:>#{width}x}"
        mark = "+" if image.path == self._report.process.path else " "
        uuid = "(null)" if image.uuid is None else image.uuid.hex
        name = printable(image.name)
        return f"{ends} {mark}{name} {image.arch or '???'}  <{uuid}> {printable(image.path)}"

    def _extra(self, crashed: ReportedThread | None) -> Iterator[str]:
        report = self._report
        yield "Extra Information:"
        thrown = report.language_exception
        referenced = None if thrown is None else _inner(_error(report), "nsexception").get(_OBJECT)
        if referenced is not None:
            yield "Object referenced by NSException:"
            yield indented(referenced, 4, sort_keys=True)
        details = {} if crashed is None else crashed.details
        stack = _inner(details, "stack")
        start, end = stack.get("dump_start"), stack.get("dump_end")
        if isinstance(start, int) and isinstance(end, int):
            contents = stack.get("contents")
            yield ""
            yield f"Stack Dump (0x{start:0{self._digits}x}-0x{end:0{self._digits}x}):"
            yield ""
            yield contents if isinstance(contents, str) else "(null)"
        notable = details.get("notable_addresses")
        if notable:
            yield ""
            yield "Notable Addresses:"
            yield indented(notable, 4, sort_keys=True)
        yield from self._deallocated()
        diagnosis = _inner(report.details, "crash").get("diagnosis")
        if isinstance(diagnosis, str):
            yield ""
            yield f"CrashDoctor Diagnosis: {diagnosis}"

    def _deallocated(self) -> Iterator[str]:
        """Yield the last deallocated exception, which the process may have accessed."""
        last = _last_exception(self._report)
        address = last.get("address")
        if not last or type(address) is not int:
            return
        name, reason = _shown(last.get("name")), _shown(last.get("reason"))
        yield ""
        yield f"Last deallocated NSException (0x{address:0{self._digits}x}): {name}: {reason}"
        if last.get(_OBJECT) is not None:
            yield "Referenced object:"
            yield indented(last[_OBJECT], 4, sort_keys=True)


def _error(report: Report) -> dict[str, JsonValue]:
    return _inner(_inner(report.details, "crash"), "error")


def _last_exception(report: Report) -> dict[str, JsonValue]:
    return _inner(_inner(report.details, "process"), "last_dealloced_nsexception")


def _is_zombie(report: Report) -> bool:
    """Return whether the process accessed a deallocated exception: a register has its address."""
    exception, crashed = report.exception, report.crashed_thread
    address = _last_exception(report).get("address")
    if exception is None or crashed is None or crashed.registers is None:
        return False
    is_read = (exception.type, exception.subtype) == ("EXC_BAD_ACCESS", "KERN_INVALID_ADDRESS")
    basic = [
        register.value
        for register in crashed.registers.registers
        if "group" not in register.details
    ]
    return is_read and type(address) is int and address in basic


def _inner(details: object, key: str) -> dict[str, JsonValue]:
    value = details.get(key) if isinstance(details, dict) else None
    return value if isinstance(value, dict) else {}


def _shown(value: JsonValue) -> str:
    return "(null)" if value is None else printable(as_text(value))
