"""Reader of crashes as JSON: ``SWIFT_BACKTRACE=format=json``, of Swift 6.2 and later."""

from __future__ import annotations

from machtrace.model.address import Avma
from machtrace.model.report import (
    Incident,
    JsonValue,
    Report,
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
from machtrace.model.symbol import SourceLocation
from machtrace.reports.consume import ObjectReader
from machtrace.reports.images import ListedImages, identifier
from machtrace.reports.source import ReportSource
from machtrace.reports.swift.frames import FrameMaker, exception, omitted

_KIND = "crashReport"
_PARTS = frozenset({"description", "threads"})
_NOT_SHOWN = ("omittedFrames", "truncated")
_KINDS = {"programCounter": "", "returnAddress": "ra", "asyncResumePoint": "async"}
_FLAGS = ("inlined", "runtimeFailure", "thunk", "system")
_TOP = 1 << 64


def recognises(source: ReportSource) -> bool:
    """Return whether it is an object as Swift's runtime writes it."""
    value = source.value
    return isinstance(value, dict) and value.get("kind") == _KIND and value.keys() >= _PARTS


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its one report."""
    document = source.documents[0]
    body = ObjectReader.of(document.value, "", list(document.warnings))
    body.text("kind")
    system = body.text("platform")
    is_macho = "linux" not in (system or "").lower()
    images = ListedImages(_image(entry, is_macho=is_macho) for entry in body.each("images"))
    maker = FrameMaker(images)
    threads = tuple(
        _thread(number, entry, maker) for number, entry in enumerate(body.each("threads"))
    )
    description, fault = body.text("description") or "", _hex(body, "faultAddress")
    reason = description if fault is None else f"{description} at {fault:#x}"
    return (
        Report(
            kind=ReportKind.SWIFT,
            incident=Incident(time=body.text("timestamp")),
            process=ReportedProcess(code_type=body.text("architecture")),
            system=ReportedSystem(os_name=system),
            exception=exception(reason),
            threads=threads,
            images=images.all(),
            details=body.details(),
            warnings=tuple(body.warnings),
        ),
    )


def _image(entry: ObjectReader, *, is_macho: bool) -> ReportedImage:
    start, end = _hex(entry, "baseAddress"), _hex(entry, "endOfText")
    digits = entry.left.get("buildId")
    uuid = identifier(digits if isinstance(digits, str) else None, is_macho=is_macho)
    if uuid is not None:
        del entry.left["buildId"]
    return ReportedImage(
        uuid=uuid,
        name=entry.text("name") or "",
        path=entry.text("path") or "",
        load_address=None if start is None else Avma(start),
        size=None if start is None or end is None or end < start else end - start,
        details=entry.details(),
    )


def _thread(index: int, entry: ObjectReader, maker: FrameMaker) -> ReportedThread:
    frames = tuple(_frame(one, maker) for one in entry.each("frames"))
    values = entry.inner("registers")
    registers = tuple(
        ReportedRegister(name, value)
        for name in tuple(values.left)
        if (value := _hex(values, name)) is not None
    )
    return ReportedThread(
        index=index,
        name=entry.text("name"),
        crashed=entry.boolean("crashed") or False,
        frames=frames,
        registers=ReportedRegisters(registers=registers) if registers else None,
        details=entry.details(),
    )


def _frame(entry: ObjectReader, maker: FrameMaker) -> ReportedFrame:
    kind = entry.left.get("kind")
    if kind in _NOT_SHOWN:
        del entry.left["kind"]
        frame = omitted(entry.integer("count"))
        return frame._replace(details={**frame.details, **entry.details()})
    attributes: list[str] = []
    if isinstance(kind, str) and kind in _KINDS:
        del entry.left["kind"]
        attributes += [_KINDS[kind]] if _KINDS[kind] else []
    attributes += [flag for flag in _FLAGS if entry.boolean(flag)]
    name = entry.text("symbol")
    symbol = None
    if name is not None:
        symbol = ReportedSymbol(name, entry.integer("offset", least=-_TOP))
    frame = maker.frame(
        _hex(entry, "address"), attributes, symbol, entry.text("image"), _location(entry)
    )
    return frame._replace(details={**frame.details, **entry.details()})


def _location(entry: ObjectReader) -> SourceLocation | None:
    place = entry.inner("sourceLocation")
    file = place.text("file")
    if file is None:
        return None
    line, column = place.integer("line"), place.integer("column")
    return SourceLocation(file, line or None, column or None)


def _hex(entry: ObjectReader, key: str) -> int | None:
    """Consume an address or a register's value, which is a string."""
    value: JsonValue = entry.left.get(key)
    try:
        number = int(value, 16) if isinstance(value, str) else -1
    except ValueError:
        number = -1
    if not 0 <= number < _TOP:
        return None
    del entry.left[key]
    return number
