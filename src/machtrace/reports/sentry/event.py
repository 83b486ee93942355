"""Reader of Sentry's events: crashes, hangs and errors, as JSON.

Sources: develop.sentry.dev, *Event Payloads*; sentry-cocoa's ``SentryCrashReportConverter``,
``SentryHangTrackingIntegration``; sentry-native's ``sentry_backend_inproc.c``,
``sentry_app_hang_monitor.c``. An event has a stack at its exception, and possibly the same one at a
thread. Events of languages without addresses have functions and files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from machtrace.model.cause import DARWIN_SIGNALS, EXCEPTION_TYPES, LINUX_SIGNALS
from machtrace.model.report import (
    Adjustment,
    Incident,
    JsonValue,
    LanguageException,
    Report,
    ReportedException,
    ReportedFrame,
    ReportedRegisters,
    ReportedThread,
    ReportKind,
)
from machtrace.reports.consume import ObjectReader
from machtrace.reports.sentry.facts import (
    number_of,
    read_images,
    read_process,
    read_system,
    time_of,
)
from machtrace.reports.sentry.frames import FrameReader
from machtrace.reports.source import ReportSource

_PARTS = frozenset(
    {"exception", "threads", "stacktrace", "message", "logentry", "debug_meta", "platform"}
)
_HANGS = frozenset({"AppHang", "mx_hang_diagnostic", "ANR"})
_FAULTS = frozenset({"mach", "signal", "signalhandler", "minidump"})
_HANDLED, _MESSAGE, HANG = "handled", "message", "hang"
_SIGNED = 1 << 63


def recognises(source: ReportSource) -> bool:
    """Return whether it is an event, and no transaction."""
    value = source.value
    return (
        isinstance(value, dict)
        and isinstance(value.get("event_id"), str)
        and value.get("type") != "transaction"
        and "profile" not in value
        and bool(_PARTS & value.keys())
    )


class _Thrown(NamedTuple):
    """An event's exception: the last of its list, whose causes precede it."""

    entry: ObjectReader
    name: str | None
    reason: str | None
    mechanism: ObjectReader
    mechanism_kind: str | None
    is_fault: bool
    """Whether the kernel raised it, rather than a runtime."""
    thread: int | None
    """The id of its thread."""

    @property
    def is_hang(self) -> bool:
        return self.mechanism_kind in _HANGS

    @property
    def innermost(self) -> Adjustment:
        return Adjustment.EXACT if self.is_fault or self.is_hang else Adjustment.RETURN


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its one report."""
    document = source.documents[0]
    body = ObjectReader.of(document.value, "", list(document.warnings))
    images, places = read_images(body)
    frames = FrameReader(images, places)
    thrown, causes = _thrown(body)
    threads = _threads(body, frames, thrown)
    threads, own_frames = _with_stack(threads, frames, thrown)
    exception = None if thrown is None or not thrown.is_fault else _exception(thrown, body)
    contexts = body.inner("contexts")
    app, device = contexts.inner("app"), contexts.inner("device")
    incident = Incident(
        id=body.text("event_id"),
        time=time_of(body, "timestamp"),
        kind=_kind(thrown),
        details=_hang_details(thrown),
    )
    process = read_process(body, app, device.text("arch"))
    system = read_system(body, app, device, contexts.inner("os"))
    language_exception = _language_exception(thrown, own_frames)
    details = dict(body.details())
    if causes:
        details["exception"] = {"values": causes}
    return (
        Report(
            kind=ReportKind.SENTRY,
            incident=incident,
            process=process,
            system=system,
            exception=exception,
            language_exception=language_exception,
            threads=threads,
            images=frames.images.all(),
            details=details,
            warnings=tuple(body.warnings),
        ),
    )


def _values(body: ObjectReader, key: str) -> list[JsonValue]:
    """Consume a list, which may be the entry ``values`` of an object."""
    holder = body if isinstance(body.left.get(key), list) else body.inner(key)
    return [
        object_
        for object_ in holder.objects(key if holder is body else "values")
        if object_ is not None
    ]


def _thrown(body: ObjectReader) -> tuple[_Thrown | None, list[JsonValue]]:
    values = _values(body, "exception")
    if not values:
        return None, []
    entry = ObjectReader.of(values.pop(), "exception", body.warnings)
    mechanism = entry.inner("mechanism")
    name, kind = entry.text("type"), mechanism.text("type")
    meta = mechanism.left.get("meta")
    has_cause = isinstance(meta, dict) and bool({"signal", "mach_exception"} & meta.keys())
    is_runtime = kind in ("nsexception", "cpp_exception")
    is_fault = not is_runtime and kind not in _HANGS and (has_cause or kind in _FAULTS)
    thread = number_of(entry, "thread_id")
    reason = entry.text("value")
    return _Thrown(entry, name, reason, mechanism, kind, is_fault, thread), values


def _kind(thrown: _Thrown | None) -> str | None:
    if thrown is None:
        return _MESSAGE
    if thrown.is_hang:
        return HANG
    is_handled = thrown.mechanism.left.get("handled") is True
    return _HANDLED if is_handled and not thrown.is_fault else thrown.mechanism_kind


def _hang_details(thrown: _Thrown | None) -> dict[str, JsonValue]:
    if thrown is None or not thrown.is_hang:
        return {}
    facts = {"type": thrown.name, "value": thrown.reason}
    details: dict[str, JsonValue] = {key: one for key, one in facts.items() if one is not None}
    return details | dict(thrown.entry.details())


def _threads(
    body: ObjectReader, frames: FrameReader, thrown: _Thrown | None
) -> tuple[ReportedThread, ...]:
    threads: list[ReportedThread] = []
    for number, value in enumerate(_values(body, "threads")):
        entry = ObjectReader.of(value, f"threads[{number}]", body.warnings)
        identity = number_of(entry, "id")
        crashed = entry.boolean("crashed") is True
        is_main = entry.left.get("main") is True
        is_thrown = thrown is not None and thrown.thread is not None and thrown.thread == identity
        is_subject = crashed or is_thrown or (thrown is not None and thrown.is_hang and is_main)
        innermost = Adjustment.EXACT
        if is_subject and thrown is not None:
            innermost = thrown.innermost
        elif entry.left.get("current") is True:
            innermost = Adjustment.RETURN  # it called Sentry's client itself
        stack, registers = frames.stack(entry.inner("stacktrace"), innermost)
        threads.append(
            ReportedThread(
                index=number,
                id=identity,
                name=entry.text("name"),
                crashed=is_subject,
                frames=stack,
                registers=registers,
                details=entry.details(),
            )
        )
    alone, registers = frames.stack(body.inner("stacktrace"), Adjustment.RETURN)
    if alone:
        threads.append(ReportedThread(index=len(threads), frames=alone, registers=registers))
    if sum(thread.crashed for thread in threads) > 1 and thrown is not None:
        threads = _with_one_subject(threads, thrown)
    return tuple(threads)


def _with_one_subject(threads: list[ReportedThread], thrown: _Thrown) -> list[ReportedThread]:
    chosen = next(
        (thread for thread in threads if thread.crashed and thread.id == thrown.thread), None
    )
    chosen = chosen or next(thread for thread in threads if thread.crashed)
    return [replace(thread, crashed=thread is chosen) for thread in threads]


def _with_stack(
    threads: tuple[ReportedThread, ...], frames: FrameReader, thrown: _Thrown | None
) -> tuple[tuple[ReportedThread, ...], tuple[ReportedFrame, ...]]:
    """Return the threads with the exception's stack, or that stack if it is not a thread's."""
    if thrown is None:
        return threads, ()
    stack, registers = frames.stack(thrown.entry.inner("stacktrace"), thrown.innermost)
    if not stack:
        return threads, ()
    subject = next((thread for thread in threads if thread.crashed), None)
    if subject is not None and not subject.frames:
        filled = replace(subject, frames=stack, registers=subject.registers or registers)
        return tuple(filled if each is subject else each for each in threads), ()
    if subject is not None:
        return threads, () if _places(subject.frames) == _places(stack) else stack
    if not thrown.is_fault and not thrown.is_hang:
        return threads, stack
    return (*threads, _thread_of(thrown, stack, registers, len(threads))), ()


def _thread_of(
    thrown: _Thrown,
    stack: tuple[ReportedFrame, ...],
    registers: ReportedRegisters | None,
    index: int,
) -> ReportedThread:
    return ReportedThread(
        index=index, id=thrown.thread, crashed=True, frames=stack, registers=registers
    )


def _places(frames: tuple[ReportedFrame, ...]) -> list[tuple[int | None, str]]:
    return [(frame.address, "" if frame.symbol is None else frame.symbol.name) for frame in frames]


def _exception(thrown: _Thrown, body: ObjectReader) -> ReportedException:
    meta = thrown.mechanism.inner("meta")
    mach, signal = meta.inner("mach_exception"), meta.inner("signal")
    kind, signal_name = mach.text("name"), signal.text("name")
    number = mach.left.get("exception")
    if kind is None and type(number) is int:
        kind = EXCEPTION_TYPES.get(number)
    signal_number = signal.left.get("number")
    if signal_name is None and type(signal_number) is int:
        is_apple = body.left.get("platform") in ("cocoa", "objc", "swift")
        signal_name = (DARWIN_SIGNALS if is_apple else LINUX_SIGNALS).get(signal_number)
    name = thrown.name or ""
    codes = (mach.integer(key, least=-_SIGNED) for key in ("code", "subcode"))
    address = number_of(thrown.mechanism.inner("data"), "relevant_address")
    return ReportedException(
        type=kind or (name if name.startswith("EXC_") else None),
        signal=signal_name or (name if name.startswith("SIG") else None),
        raw_codes=tuple(code for code in codes if code is not None),
        message=thrown.reason,
        address=address,
        details=thrown.entry.details(),
    )


def _language_exception(
    thrown: _Thrown | None, frames: tuple[ReportedFrame, ...]
) -> LanguageException | None:
    if thrown is None or (not frames and (thrown.is_fault or thrown.is_hang)):
        return None
    details = {} if thrown.is_fault or thrown.is_hang else thrown.entry.details()
    return LanguageException(name=thrown.name, reason=thrown.reason, frames=frames, details=details)
