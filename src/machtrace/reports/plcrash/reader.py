"""Reader of .plcrash files: the report, its images, threads and their frames."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.cause import EXCEPTION_TYPES
from machtrace.model.report import (
    Adjustment,
    Incident,
    JsonValue,
    LanguageException,
    Report,
    ReportedException,
    ReportedFrame,
    ReportedImage,
    ReportedProcess,
    ReportedRegister,
    ReportedRegisters,
    ReportedSymbol,
    ReportedSystem,
    ReportedThread,
    ReportKind,
)
from machtrace.reports.images import ImageRanges, arch_name
from machtrace.reports.plcrash.wire import Message
from machtrace.reports.source import ReportSource

MAGIC = b"plcrash"
_VERSION = 1
_SYSTEMS = {0: "Mac OS X", 1: "iPhone OS", 2: "Mac OS X", 4: "Apple tvOS"}
_MAX_YEARS = 1 << 36
_UUID_BYTES = 16


def recognises(source: ReportSource) -> bool:
    """Return whether it begins with the signature."""
    return source.data.startswith(MAGIC)


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its one report; a truncated file gives a partial one, with a warning.

    Raises:
        FormatError: its version is unknown, or it is empty.
    """
    body = memoryview(source.data)[len(MAGIC) :]
    if not body or body[0] != _VERSION:
        version = body[0] if body else "none"
        raise source.error(f"version {version} of PLCrashReporter's format")
    message = Message(body[1:], source.name, len(MAGIC) + 1)
    if message.error is not None and not message.rest():
        raise message.error
    warnings = [] if message.error is None else [f"it is truncated ({message.error})"]
    details: dict[str, JsonValue] = {}
    images = read_images(message, warnings)
    stacks = StackReader(images, warnings)
    incident, system = _incident_and_system(message, details)
    process = _process(message, details)
    exception = _exception(message)
    language_exception = _language_exception(message, stacks)
    threads = stacks.threads(message)
    _store_rest(details, "", message)
    return (
        Report(
            kind=ReportKind.PLCRASH,
            incident=incident,
            system=system,
            process=process,
            exception=exception,
            language_exception=language_exception,
            threads=threads,
            images=images,
            details=details,
            warnings=tuple(warnings),
        ),
    )


def _store_rest(details: dict[str, JsonValue], name: str, message: Message) -> None:
    """Store what was not consumed."""
    rest = message.rest()
    if rest and name:
        details[name] = rest
    else:
        details |= rest


def _incident_and_system(
    message: Message, details: dict[str, JsonValue]
) -> tuple[Incident, ReportedSystem]:
    system, machine, info = message.message(1), message.message(8), message.message(9)
    number, version = system.integer(1), system.text(2)
    numbers = {"operating_system": number, "architecture": system.integer(3)}
    numbers_read: dict[str, JsonValue] = {
        key: value for key, value in numbers.items() if value is not None
    }
    name = _SYSTEMS.get(number if number is not None else -1)
    incident = Incident(id=_identifier(info.data(2)), time=_time(system.integer(4)))
    requested = info.boolean(1)
    if requested is not None:
        details["user_requested"] = requested
    reported_system = ReportedSystem(
        model=machine.text(1),
        os_name=" ".join(one for one in (name, version) if one) or None,
        os_build=system.text(5),
        details=numbers_read | _processor(machine),
    )
    _store_rest(details, "system_info", system)
    _store_rest(details, "machine_info", machine)
    _store_rest(details, "report_info", info)
    return incident, reported_system


def _processor(machine: Message) -> dict[str, JsonValue]:
    processor = machine.message(2)
    details = {
        "processor_encoding": processor.integer(1),
        "processor_type": processor.integer(2),
        "processor_subtype": processor.integer(3),
        "processor_count": machine.integer(3),
        "logical_processor_count": machine.integer(4),
    }
    known: dict[str, JsonValue] = {key: one for key, one in details.items() if one is not None}
    rest = processor.rest()
    return known | ({"processor": rest} if rest else {})


def _identifier(data: bytes | None) -> str | None:
    if data is None or len(data) != _UUID_BYTES:
        return None if data is None else data.hex()
    digits = data.hex().upper()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _time(seconds: int | None) -> str | None:
    """Format a time as the text has it."""
    if seconds is None or seconds >= _MAX_YEARS:
        return None if seconds is None else str(seconds)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%d %H:%M:%S +0000")


def _process(message: Message, details: dict[str, JsonValue]) -> ReportedProcess:
    application, process = message.message(2), message.message(7)
    native = process.boolean(6)
    reported_process = ReportedProcess(
        identifier=application.text(1),
        build=application.text(2),
        version=application.text(3),
        name=process.text(1),
        pid=process.integer(2),
        path=process.text(3),
        parent=process.text(4),
        parent_pid=process.integer(5),
        is_translated=None if native is None else not native,
        launch_time=_time(process.integer(7)),
    )
    _store_rest(details, "application_info", application)
    _store_rest(details, "process_info", process)
    return reported_process


def _exception(message: Message) -> ReportedException | None:
    signal = message.message(6)
    name, code, address = signal.text(1), signal.text(2), signal.integer(3)
    mach = signal.message(4)
    kind, codes = mach.integer(1), mach.integers(2)
    details: dict[str, JsonValue] = {} if code is None else {"code": code}
    if mach_rest := _unnamed_type(kind) | mach.rest():
        details["mach_exception"] = mach_rest
    details |= signal.rest()
    if name is None and code is None and address is None and kind is None and not details:
        return None
    return ReportedException(
        type=EXCEPTION_TYPES.get(-1 if kind is None else kind),
        signal=name,
        codes=None if code is None else f"{code} at {address or 0:#x}",
        raw_codes=codes,
        address=address,
        details=details,
    )


def _unnamed_type(kind: int | None) -> dict[str, JsonValue]:
    """Return an unnamed exception's number."""
    return {} if kind is None or kind in EXCEPTION_TYPES else {"type": kind}


def _language_exception(message: Message, stacks: StackReader) -> LanguageException | None:
    exception = message.message(5)
    name, reason = exception.text(1), exception.text(2)
    frames = stacks.returns(exception)
    details = exception.rest()
    if name is None and reason is None and not frames and not details:
        return None
    return LanguageException(name=name, reason=reason, frames=frames, details=details)


def read_images(message: Message, warnings: list[str]) -> tuple[ReportedImage, ...]:
    """Read ``binary_images``."""
    images = tuple(_image(one) for one in message.messages(4))
    if not images:
        warnings.append("it has no images")
    return images


def _image(message: Message) -> ReportedImage:
    base, code_type, uuid = message.integer(1), message.message(5), message.data(4)
    path = message.text(3) or ""
    encoding, kind, subtype = code_type.integer(1), code_type.integer(2), code_type.integer(3)
    numbers = {"encoding": encoding, "type": kind, "subtype": subtype}
    details: dict[str, JsonValue] = {key: one for key, one in numbers.items() if one is not None}
    if rest := code_type.rest():
        details["code_type"] = rest
    if uuid is not None and len(uuid) != _UUID_BYTES:
        details["uuid"] = uuid.hex()
    return ReportedImage(
        uuid=UUID(bytes=uuid) if uuid is not None and len(uuid) == _UUID_BYTES else None,
        name=path.rpartition("/")[2],
        path=path,
        arch=None if kind is None else arch_name(kind, subtype or 0),
        load_address=None if base is None else Avma(base),
        size=message.integer(2),
        details=details | message.rest(),
    )


class StackReader:
    """Reads threads, and finds the images of frames."""

    def __init__(self, images: Sequence[ReportedImage], warnings: list[str]) -> None:
        self._images = images
        self._warnings = warnings
        self._ranges = ImageRanges(images)

    def threads(self, message: Message) -> tuple[ReportedThread, ...]:
        """Read ``threads``."""
        return tuple(self._thread(number, one) for number, one in enumerate(message.messages(3)))

    def _thread(self, place: int, message: Message) -> ReportedThread:
        number = message.integer(1)
        registers = tuple(
            ReportedRegister(one.text(1) or "", one.integer(2) or 0, details=one.rest())
            for one in message.messages(4)
        )
        crashed = bool(message.boolean(3))
        return ReportedThread(
            index=place if number is None else number,
            crashed=crashed,
            frames=self._frames(message, 2, Adjustment.EXACT),
            registers=ReportedRegisters(registers=registers) if registers else None,
            details=message.rest(),
        )

    def returns(self, message: Message) -> tuple[ReportedFrame, ...]:
        """Read the frames of an exception, all of them return addresses."""
        return self._frames(message, 3, Adjustment.RETURN)

    def _frames(
        self, message: Message, field: int, innermost: Adjustment
    ) -> tuple[ReportedFrame, ...]:
        frames: list[ReportedFrame] = []
        for entry in message.messages(field):
            frames.append(self._frame(entry, Adjustment.RETURN if frames else innermost))
        return tuple(frames)

    def _frame(self, message: Message, adjustment: Adjustment) -> ReportedFrame:
        signed = message.integer(3)
        address = None if signed is None else self._ranges.unsigned(signed)
        # A call can be the last instruction of its image.
        inside = None if address is None else address - (adjustment is Adjustment.RETURN)
        index = None if inside is None else self._ranges.find(inside)
        offset = None
        if index is not None and address is not None:
            offset = ImageOffset(address - (self._images[index].load_address or 0))
        symbol_message = message.message(6)
        name, start = symbol_message.text(1), symbol_message.integer(2)
        end = symbol_message.integer(3)
        details: dict[str, JsonValue] = {}
        if rest := symbol_message.rest():
            details["symbol"] = rest
        details |= message.rest()
        if signed != address:
            details["pc"] = signed
        if end is not None:
            details["end_address"] = end
        into = None
        if name is not None and start is not None and address is not None and start <= address:
            into = address - start
        elif start is not None:
            details["start_address"] = start
        return ReportedFrame(
            None if address is None else Avma(address),
            index,
            offset,
            adjustment,
            None if name is None else ReportedSymbol(name, into),
            details=details,
        )
