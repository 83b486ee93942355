"""The body of a crash: bug types 309, 109, and all others that list threads."""

from __future__ import annotations

from dataclasses import replace

from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report, ReportKind
from machtrace.model.reported_frame import Adjustment
from machtrace.model.reported_image import ReportedImage
from machtrace.model.reported_process import (
    Incident,
    LanguageException,
    ReportedException,
    ReportedProcess,
    ReportedSystem,
    ReportedTermination,
)
from machtrace.model.reported_thread import ReportedThread
from machtrace.report.ips.fields import EXCEPTION, PROCESS, SYSTEM, TERMINATION, take
from machtrace.report.ips.frames import read_frames
from machtrace.report.ips.images import read_images
from machtrace.report.ips.threads import read_threads
from machtrace.report.taking import Taking


def read_crash(incident: Incident, body: Taking) -> Report:
    """The report; ``incident`` is what the header says."""
    images = read_images(body)
    threads = read_threads(body, images)
    _drop_repeated(body, incident, threads)
    return Report(
        kind=ReportKind.APPLE_IPS,
        incident=_with_time(incident, body),
        process=ReportedProcess(**take(body, PROCESS)),
        system=ReportedSystem(**take(body, SYSTEM)),
        exception=_exception(body),
        termination=_termination(body),
        language_exception=_language_exception(body, images),
        application_information=_application_information(body),
        threads=threads,
        images=images,
        details=body.details(),
        warnings=tuple(body.warnings),
    )


def _drop_repeated(body: Taking, incident: Incident, threads: tuple[ReportedThread, ...]) -> None:
    """Take what says again what is known: what says otherwise stays."""
    crashed = next((thread.index for thread in threads if thread.crashed), None)
    known: tuple[tuple[str, JsonValue], ...] = (
        ("incident", incident.id),
        ("bug_type", incident.kind),
        ("faultingThread", crashed),
    )
    for key, value in known:
        if value is not None and body.left.get(key) == value:
            del body.left[key]


def _with_time(incident: Incident, body: Taking) -> Incident:
    time = body.text("captureTime")
    return incident if time is None else replace(incident, time=time)


def _exception(body: Taking) -> ReportedException | None:
    if not isinstance(body.left.get("exception"), dict):
        return None
    codes = body.inner("exception").left.get("rawCodes")
    raw_codes: tuple[int, ...] = ()
    if isinstance(codes, list) and codes:
        numbers = tuple(one for one in codes if type(one) is int)
        if len(numbers) == len(codes):
            raw_codes = numbers
            del body.inner("exception").left["rawCodes"]
    return ReportedException(**take(body, EXCEPTION), raw_codes=raw_codes)


def _termination(body: Taking) -> ReportedTermination | None:
    if not isinstance(body.left.get("termination"), dict):
        return None
    given = body.inner("termination").left.get("reasons")
    reasons: tuple[str, ...] = ()
    if isinstance(given, list) and given:
        texts = tuple(one for one in given if isinstance(one, str))
        if len(texts) == len(given):
            reasons = texts
            del body.inner("termination").left["reasons"]
    return ReportedTermination(**take(body, TERMINATION), reasons=reasons)


def _language_exception(
    body: Taking, images: tuple[ReportedImage, ...]
) -> LanguageException | None:
    entries = body.objects("lastExceptionBacktrace")
    if not entries:
        return None
    frames = read_frames(
        entries,
        images,
        innermost=Adjustment.RETURN,
        where="lastExceptionBacktrace",
        warnings=body.warnings,
    )
    return LanguageException(frames=frames)


def _application_information(body: Taking) -> tuple[tuple[str, tuple[str, ...]], ...]:
    given = body.left.get("asi")
    if not isinstance(given, dict):
        return ()
    found: list[tuple[str, tuple[str, ...]]] = []
    for image, said in given.items():
        texts = tuple(one for one in said if isinstance(one, str)) if isinstance(said, list) else ()
        if not isinstance(said, list) or len(texts) != len(said):
            return ()
        found.append((image, texts))
    del body.left["asi"]
    return tuple(found)
