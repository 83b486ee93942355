"""The body of a crash: bug types 309, 109, and all others that list threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from machtrace.model.report import (
    Adjustment,
    Incident,
    LanguageException,
    Report,
    ReportedException,
    ReportedFrame,
    ReportedProcess,
    ReportedSystem,
    ReportedTermination,
    ReportKind,
)
from machtrace.reports.consume import ObjectReader
from machtrace.reports.exceptions import accessed_address, last_words
from machtrace.reports.ips.fields import EXCEPTION, PROCESS, SYSTEM, TERMINATION, take
from machtrace.reports.ips.frames import FrameReader
from machtrace.reports.ips.images import read_images
from machtrace.reports.ips.threads import read_threads

Said = tuple[tuple[str, tuple[str, ...]], ...]


def read_crash(incident: Incident, body: ObjectReader) -> Report:
    """Return the report; ``incident`` is from the header.

    Redundant keys, such as ``faultingThread``, stay in the details.
    """
    images = read_images(body.left, body.warnings)
    frames = FrameReader(images, body.warnings)
    threads = read_threads(body.left, frames, body.warnings)
    if not any(thread.crashed for thread in threads):
        faulting = body.left.get("faultingThread")
        if type(faulting) is int and 0 <= faulting < len(threads):
            body.warnings.append(
                f"no thread is marked as crashed; thread {faulting} is taken from faultingThread"
            )
    information = _application_information(body)
    return Report(
        kind=ReportKind.APPLE_IPS,
        incident=_with_time(incident, body),
        process=ReportedProcess(**take(body, PROCESS)),
        system=ReportedSystem(**take(body, SYSTEM)),
        exception=_exception(body),
        termination=_termination(body),
        language_exception=_language_exception(body, frames, information),
        application_information=information,
        threads=threads,
        images=images,
        details=body.details(),
        warnings=tuple(body.warnings),
    )


def _with_time(incident: Incident, body: ObjectReader) -> Incident:
    """Return the incident with the body's time, else the header's."""
    stamp = incident.details.get("timestamp")
    time = body.left.get("captureTime")
    if isinstance(time, str) and time != stamp:
        del body.left["captureTime"]
        return replace(incident, time=time)
    return replace(incident, time=stamp) if isinstance(stamp, str) else incident


def _exception(body: ObjectReader) -> ReportedException | None:
    entry = body.left.get("exception")
    if not isinstance(entry, dict) or not entry:
        return None
    inner = body.inner("exception")
    codes = inner.left.get("rawCodes")
    raw_codes: tuple[int, ...] = ()
    if isinstance(codes, list) and codes:
        numbers = tuple(one for one in codes if type(one) is int)
        if len(numbers) == len(codes):
            raw_codes = numbers
            del inner.left["rawCodes"]
    fields = take(body, EXCEPTION)
    address = accessed_address(fields.get("subtype"))
    return ReportedException(**fields, raw_codes=raw_codes, address=address)


def _termination(body: ObjectReader) -> ReportedTermination | None:
    entry = body.left.get("termination")
    if not isinstance(entry, dict) or not entry:
        return None
    inner = body.inner("termination")
    reasons: tuple[str, ...] = ()
    listed = inner.left.get("reasons")
    if isinstance(listed, list) and listed:
        texts = tuple(one for one in listed if isinstance(one, str))
        if len(texts) == len(listed):
            reasons = texts
            del inner.left["reasons"]
    return ReportedTermination(**take(body, TERMINATION), reasons=reasons)


def _language_exception(
    body: ObjectReader, frames: FrameReader, information: Said
) -> LanguageException | None:
    """Return where it was thrown; name and reason stay in the details."""
    entries = body.left.get("lastExceptionBacktrace")
    stack: tuple[ReportedFrame, ...] = ()
    if isinstance(entries, list) and entries:
        del body.left["lastExceptionBacktrace"]
        stack = frames.read(entries, innermost=Adjustment.RETURN, where="lastExceptionBacktrace")
    name, reason = _said(body.left.get("exceptionReason"))
    if name is None:
        words = last_words(text for _, texts in information for text in texts)
        name, reason = words or (None, None)
    if not stack and name is None:
        return None
    return LanguageException(name=name, reason=reason, frames=stack)


def _said(reason: Any) -> tuple[str | None, str | None]:  # noqa: ANN401 - of JSON, any value
    if not isinstance(reason, dict):
        return None, None
    name, message = reason.get("name"), reason.get("composed_message")
    return (
        name if isinstance(name, str) else None,
        message if isinstance(message, str) else None,
    )


def _application_information(body: ObjectReader) -> Said:
    entries = body.left.get("asi")
    if not isinstance(entries, dict) or not entries:
        return ()
    information: list[tuple[str, tuple[str, ...]]] = []
    for image, image_texts in entries.items():
        if not isinstance(image_texts, list):
            return ()
        texts = tuple(one for one in image_texts if isinstance(one, str))
        if len(texts) != len(image_texts):
            return ()
        information.append((image, texts))
    del body.left["asi"]
    return tuple(information)
