"""Writer of .ips files.

A report read from one is written with the same keys and values. Others become a crash, bug type
309, with all keys that Apple's readers and lldb's ``crashlog`` require. Trees of samples are
written under ``callTrees``, a key of ours.
"""

from __future__ import annotations

from collections.abc import Iterator

from machtrace.model.report import Adjustment, JsonValue, Report, ReportKind
from machtrace.reports.crash.labels import in_apple_terms
from machtrace.reports.ips.documents import may_be_header
from machtrace.reports.ips.fields import EXCEPTION, PROCESS, SYSTEM, TERMINATION, in_order, put
from machtrace.reports.ips.images import image_object, written_bases
from machtrace.reports.ips.reader import AFTER_BODY, BODY, HEADER, TEXT
from machtrace.reports.ips.system_reports import is_jetsam, is_panic, is_stackshot, stackshot_body
from machtrace.reports.ips.threads import frame_objects, thread_object
from machtrace.reports.json_writer import dumps


def tree_objects(report: Report, absolute: int) -> Iterator[JsonValue]:
    """Yield an object for each tree: parents, samples and frames of its nodes, as lists.

    Args:
        report: the trees' report.
        absolute: the index of the image that stands for none.
    """
    bases = written_bases(report.images, is_of_ips=False)
    for tree in report.trees:
        known: dict[str, JsonValue] = {
            "id": tree.thread,
            "name": tree.name,
            "queue": tree.queue,
            "count": tree.count,
            "attributed": True if tree.is_attributed else None,
            "innermostFirst": True if tree.is_inverted else None,
        }
        entry: dict[str, JsonValue] = {
            key: value for key, value in known.items() if value is not None
        }
        entry["parents"] = [node.parent for node in tree.nodes]
        entry["samples"] = [node.samples for node in tree.nodes]
        frames = [node.frame for node in tree.nodes]
        entry["frames"] = frame_objects(
            frames, innermost=Adjustment.RETURN, absolute=absolute, bases=bases
        )
        yield entry


_CRASH = "309"
_OF_APPLE = (ReportKind.APPLE_IPS, ReportKind.APPLE_CRASH)
_NO_IMAGE: dict[str, JsonValue] = {
    "size": 0,
    "source": "A",
    "base": 0,
    "uuid": "00000000-0000-0000-0000-000000000000",
}


def ips_text(report: Report) -> str:
    """Return the file's text: the header's line, then the body, a line for each of its keys."""
    return "".join(_texts(report))


def _texts(report: Report) -> Iterator[str]:
    header = _header(report)
    if header is not None:
        yield _dumps(header) + "\n"
    if report.kind is ReportKind.APPLE_IPS:
        details = report.details
        if isinstance(details.get(TEXT), str) and details.keys() == {TEXT}:
            yield f"{details[TEXT]}\n"
            return
        if BODY in details and details.keys() <= {BODY, AFTER_BODY}:
            yield _dumps(details[BODY]) + "\n"
            yield from _after(report)
            return
    body = _body(report)
    if not body and header is not None:
        return
    lines = (f"  {_dumps(key)} : {_dumps(value)}" for key, value in body.items())
    yield "{\n" + ",\n".join(lines) + "\n}\n"
    yield from _after(report)


def _after(report: Report) -> Iterator[str]:
    """Yield what followed the body."""
    after = report.details.get(AFTER_BODY)
    if report.kind is ReportKind.APPLE_IPS and isinstance(after, str):
        yield f"\n{after}\n"


def _dumps(value: JsonValue) -> str:
    text = dumps(value, ensure_ascii=False)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # undecodable bytes are lone surrogates
            return dumps(value)
    return text


def _header(report: Report) -> dict[str, JsonValue] | None:
    incident = report.incident
    header: dict[str, JsonValue] = dict(incident.details)
    if report.kind is ReportKind.APPLE_IPS:
        if header == {HEADER: None}:
            return None
        header |= _present(bug_type=incident.kind, incident_id=incident.id)
        # Only a report from another source can lack a header's keys.
        return header if may_be_header(header) else {"bug_type": _CRASH, **header}
    process, system = report.process, report.system
    made = _present(
        app_name=process.name or "",
        timestamp=incident.time,
        app_version=process.version or "",
        build_version=process.build or "",
        bundleID=process.identifier,
        os_version=_os_version(system.os_name, system.os_build),
        name=process.name,
    )
    header = made | header | _present(bug_type=_CRASH)
    return header if "incident_id" in header else header | _present(incident_id=incident.id)


def _present(**values: str | None) -> dict[str, JsonValue]:
    """Return the values that are not None."""
    return {key: value for key, value in values.items() if value is not None}


def _os_version(name: str | None, build: str | None) -> str | None:
    return f"{name} ({build})" if name and build else name


def _body(report: Report) -> dict[str, JsonValue]:
    is_of_ips = report.kind is ReportKind.APPLE_IPS
    if is_of_ips and is_stackshot(report.details):
        return _without_after(stackshot_body(report))
    body: dict[str, JsonValue] = dict(report.details)
    if is_of_ips:
        body = _without_after(body)
        if is_jetsam(body) or is_panic(body):
            return body
    put(body, PROCESS, report.process)
    put(body, SYSTEM, report.system)
    _put_exceptions(body, report)
    if is_of_ips:
        time = report.incident.time
        if time is not None and time != report.incident.details.get("timestamp"):
            body["captureTime"] = time
    else:
        _put_common(body, report)
    absolute = _absolute(report)
    bases = written_bases(report.images, is_of_ips=is_of_ips)
    if report.threads or not is_of_ips:
        body["threads"] = [
            thread_object(thread, absolute, bases, is_of_ips=is_of_ips) for thread in report.threads
        ]
    images = [image_object(image, is_of_ips=is_of_ips) for image in report.images]
    if absolute == len(images) and _needs_absolute(report, is_of_ips=is_of_ips):
        images.append(dict(_NO_IMAGE))
    if images or not is_of_ips:
        body["usedImages"] = images
    return in_order(body)


def _without_after(body: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {key: value for key, value in body.items() if key != AFTER_BODY}


def _put_common(body: dict[str, JsonValue], report: Report) -> None:
    """Add what every reader of crashes requires."""
    incident = report.incident
    body |= _present(captureTime=incident.time, incident=incident.id, bug_type=_CRASH)
    crashed = next((place for place, one in enumerate(report.threads) if one.crashed), None)
    if crashed is not None:
        body["faultingThread"] = crashed
        thread = report.threads[crashed]
        triggered: JsonValue = _present(name=thread.name, queue=thread.queue)
        if triggered:
            body.setdefault("legacyInfo", {"threadTriggered": triggered})
    body.setdefault("pid", 0)
    body.setdefault("procName", "")
    exception = body.get("exception")
    if exception is None or isinstance(exception, dict):
        body["exception"] = {"type": "???", **(exception or {})}
    trees = [*tree_objects(report, _absolute(report))]
    if trees:
        body["callTrees"] = trees


def _put_exceptions(body: dict[str, JsonValue], report: Report) -> None:
    if report.exception is not None:
        is_of_apple = report.kind in _OF_APPLE
        exception = report.exception if is_of_apple else in_apple_terms(report.exception)
        put(body, EXCEPTION, exception)
        _put_list(body, "exception", "rawCodes", list(report.exception.raw_codes))
    if report.termination is not None:
        put(body, TERMINATION, report.termination)
        _put_list(body, "termination", "reasons", list(report.termination.reasons))
    thrown = report.language_exception
    is_of_ips = report.kind is ReportKind.APPLE_IPS
    if thrown is not None:
        if thrown.frames:
            body["lastExceptionBacktrace"] = frame_objects(
                thrown.frames,
                innermost=Adjustment.RETURN,
                absolute=_absolute(report),
                bases=written_bases(report.images, is_of_ips=is_of_ips),
                is_of_ips=is_of_ips,
            )
        if thrown.name is not None and report.kind not in _OF_APPLE:
            reason: dict[str, JsonValue] = {"type": "objc-exception", "name": thrown.name}
            if thrown.reason is not None:
                reason["composed_message"] = thrown.reason
            body.setdefault("exceptionReason", reason)
    if report.application_information:
        body["asi"] = {
            image: list(exception) for image, exception in report.application_information
        }


def _put_list(body: dict[str, JsonValue], key: str, name: str, items: list[JsonValue]) -> None:
    inner = body.get(key, {})
    if items and isinstance(inner, dict):
        body[key] = {**inner, name: items}


def _absolute(report: Report) -> int:
    """Return the index of the image that stands for none: the report's, else one after all."""
    for index, image in enumerate(report.images):
        if image.size == 0 and image.load_address == 0 and not image.name:
            return index
    return len(report.images)


def _needs_absolute(report: Report, *, is_of_ips: bool) -> bool:
    """Return whether a frame is in no image; in .ips reports only if it has an address."""
    stacks = [thread.frames for thread in report.threads]
    if report.language_exception is not None:
        stacks.append(report.language_exception.frames)
    if not is_of_ips:
        stacks += (tuple(node.frame for node in tree.nodes) for tree in report.trees)
    return any(
        frame.image is None and (frame.address is not None or not is_of_ips)
        for frames in stacks
        for frame in frames
    )
