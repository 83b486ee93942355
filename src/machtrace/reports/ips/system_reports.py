"""Bodies of stackshots, panics and jetsam events.

Stackshot, bug type 288: the stacks of all processes at one time. ``processByPid`` has processes by
pid, their ``threadById`` threads by id, and these have ``userFrames`` and ``kernelFrames``: pairs
of an index in ``binaryImages`` and an offset. An image is a list of UUID, address and source.
Source: xnu's ``tools/lldbmacros/kcdata.py``, which writes such files, and files of devices. Each
process becomes one of the report's others, with the images of its stacks. Frames are consumed; all
other keys stay.

Panic, bug type 210: the kernel's text, ``panicString``, with registers and a kernel backtrace;
files of devices also have the stacks of all processes, as a stackshot has. All keys stay.

Jetsam event, bug type 298: the memory of hundreds of processes, without stacks. The report is about
the largest, or the one that was ended. All keys stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.report import (
    NO_DETAILS,
    Adjustment,
    Details,
    Incident,
    JsonValue,
    Report,
    ReportedFrame,
    ReportedImage,
    ReportedProcess,
    ReportedSystem,
    ReportedTask,
    ReportedTermination,
    ReportedThread,
    ReportKind,
)
from machtrace.reports.ips.images import WORD, take_uuid

_PID_LIMIT = 1 << 31


def is_jetsam(body: Details) -> bool:
    """Return whether it is a jetsam event's body."""
    return isinstance(body.get("processes"), list) and (
        "largestProcess" in body or "memoryStatus" in body
    )


def read_jetsam(incident: Incident, body: dict[str, JsonValue], warnings: list[str]) -> Report:
    """Return the report."""
    ended = _process(body, lambda one: isinstance(one.get("reason"), str))
    largest = _text(body.get("largestProcess"))
    shown = _process(body, lambda one: _text(one.get("name")) == largest) or {}
    about = ended if ended is not None else shown
    termination = None
    if ended is not None:
        termination = ReportedTermination(namespace="JETSAM", indicator=_text(ended.get("reason")))
    return replace(
        _report(incident, body, warnings),
        process=ReportedProcess(
            name=_text(about.get("name")) or largest, pid=_pid(about.get("pid"))
        ),
        termination=termination,
    )


def _report(incident: Incident, body: dict[str, JsonValue], warnings: list[str]) -> Report:
    name, build = split_build(body.get("build"))
    date = body.get("date")
    return Report(
        kind=ReportKind.APPLE_IPS,
        incident=replace(incident, time=date) if isinstance(date, str) else incident,
        system=ReportedSystem(
            model=_text(body.get("product")),
            os_name=name,
            os_build=build,
            crash_reporter_key=_text(body.get("crashReporterKey")),
        ),
        details=body,
        warnings=tuple(warnings),
    )


def _process(
    body: Details, is_it: Callable[[dict[str, JsonValue]], bool]
) -> dict[str, JsonValue] | None:
    processes = body.get("processes")
    for process in processes if isinstance(processes, list) else ():
        if isinstance(process, dict) and is_it(process):
            return process
    return None


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) and value else None


def _pid(value: JsonValue) -> int | None:
    return value if type(value) is int and 0 <= value < _PID_LIMIT else None


def split_build(value: JsonValue) -> tuple[str | None, str | None]:
    """Split name and build of ``iPhone OS 15.5 (19F77)``."""
    if not isinstance(value, str):
        return None, None
    name, bracket, build = value.partition(" (")
    return (name, build[:-1]) if bracket and build.endswith(")") else (value, None)


_PANIC_TEXT = "panicString"
_REASON = "reason"


def is_panic(body: Details) -> bool:
    """Return whether it is a panic's body."""
    return isinstance(body.get(_PANIC_TEXT), str)


def last_words(body: Details) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the kernel's text, as an application's last words; of a stackshot its reason."""
    reason = body.get(_PANIC_TEXT, body.get(_REASON))
    return (("", (reason,)),) if isinstance(reason, str) and reason else ()


def read_panic(incident: Incident, body: dict[str, JsonValue], warnings: list[str]) -> Report:
    """Return the report."""
    report = _report(incident, body, warnings)
    if not body.get("build"):
        name, build = split_build(body.get("macOSVersion"))
        report = replace(report, system=replace(report.system, os_name=name, os_build=build))
    return replace(report, application_information=last_words(body))


_PROCESSES = "processByPid"
_THREADS = "threadById"
_KERNEL, _USER = "kernelFrames", "userFrames"
_IMAGES = "binaryImages"
_IMAGE_INDEX = "imageIndex"
_ODD = "frame"
_OF_KERNEL: Details = {"kernel": True}
_DIGITS = 19


def is_stackshot(body: Details) -> bool:
    """Return whether it is a stackshot's body."""
    return isinstance(body.get(_PROCESSES), dict)


def read_stackshot(incident: Incident, body: dict[str, JsonValue], warnings: list[str]) -> Report:
    """Return the report."""
    images = _images(body.get(_IMAGES))
    left: dict[str, JsonValue] = {}
    others: list[ReportedTask] = []
    processes = body[_PROCESSES]
    for pid, process in processes.items() if isinstance(processes, dict) else ():
        if not isinstance(process, dict):
            warnings.append(f"process {pid} is not an object; stored as is")
            left[pid] = process
            continue
        task, left[pid] = _task(pid, process, images)
        others.append(task)
    return replace(
        _report(incident, body, warnings),
        application_information=last_words(body),
        others=tuple(others),
        details={**body, _PROCESSES: left},
    )


def _images(entries: JsonValue) -> list[ReportedImage]:
    return [
        _image(index, one) for index, one in enumerate(entries if isinstance(entries, list) else ())
    ]


def _image(index: int, entry: JsonValue) -> ReportedImage:
    rest: dict[str, Any] = {_IMAGE_INDEX: index}
    uuid = base = None
    match entry:
        case [str(text), int(address), *more]:
            uuid = take_uuid({"uuid": text}, "uuid")
            base = Avma(address) if 0 <= address < WORD else None
            if more and isinstance(more[0], str):
                rest["source"] = more[0]
        case _:
            pass
    return ReportedImage(uuid=uuid, load_address=base, details=rest)


class _TaskImages:
    """The report's images that one process' frames are in."""

    def __init__(self, images: list[ReportedImage]) -> None:
        self._images = images
        self._indices: dict[int, int] = {}
        self.found: list[ReportedImage] = []

    def __len__(self) -> int:
        return len(self._images)

    def index(self, image: int) -> int:
        """Return the process' own index of one of the report's images."""
        if image not in self._indices:
            self._indices[image] = len(self.found)
            self.found.append(self._images[image])
        return self._indices[image]


def _task(
    pid: str, process: dict[str, JsonValue], images: list[ReportedImage]
) -> tuple[ReportedTask, JsonValue]:
    """Return a process with its threads, and its object without their frames."""
    threads = process.get(_THREADS)
    used = _TaskImages(images)
    reported_threads: list[ReportedThread] = []
    left: dict[str, JsonValue] = {}
    for tid, thread in threads.items() if isinstance(threads, dict) else ():
        left[tid] = thread
        if isinstance(thread, dict):
            read, left[tid] = _thread(len(reported_threads), tid, thread, used)
            reported_threads.append(read)
    name, number = process.get("procname"), process.get("pid")
    if type(number) is not int and pid.isdecimal() and len(pid) < _DIGITS:
        number = int(pid)
    task = ReportedTask(
        process=ReportedProcess(
            name=name if isinstance(name, str) else None,
            pid=number if type(number) is int and number >= 0 else None,
        ),
        threads=tuple(reported_threads),
        images=tuple(used.found),
    )
    return task, {**process, _THREADS: left} if isinstance(threads, dict) else process


def _thread(
    index: int, tid: str, thread: dict[str, JsonValue], images: _TaskImages
) -> tuple[ReportedThread, JsonValue]:
    rest = dict(thread)
    frames: list[ReportedFrame] = []
    for key, details in ((_KERNEL, _OF_KERNEL), (_USER, NO_DETAILS)):
        entries = rest.get(key)
        if isinstance(entries, list) and entries:
            del rest[key]
            frames += _frames(entries, details, images)
    name = rest.get("name")
    read = ReportedThread(
        index=index,
        id=int(tid) if tid.isdecimal() and len(tid) < _DIGITS else None,
        name=name if isinstance(name, str) else None,
        frames=tuple(frames),
    )
    return read, rest


def _frames(
    entries: list[JsonValue], details: Details, images: _TaskImages
) -> Iterator[ReportedFrame]:
    adjustment = Adjustment.EXACT
    for entry in entries:
        match entry:
            case [int(image), int(offset)] if (
                type(image) is int
                and type(offset) is int
                and 0 <= image < len(images)
                and 0 <= offset < WORD
            ):
                index = images.index(image)
                base = images.found[index].load_address
                address = None
                if base is not None and base + offset < WORD:
                    address = Avma(base + offset)
                yield ReportedFrame(
                    address, index, ImageOffset(offset), adjustment, details=details
                )
            case _:
                yield ReportedFrame(None, None, None, adjustment, details={**details, _ODD: entry})
        adjustment = Adjustment.RETURN


def stackshot_body(report: Report) -> dict[str, JsonValue]:
    """Return the equivalent body."""
    left = report.details.get(_PROCESSES)
    tasks = iter(report.others)
    processes: dict[str, JsonValue] = {}
    for pid, process in left.items() if isinstance(left, dict) else ():
        task = next(tasks, None) if isinstance(process, dict) else None
        processes[pid] = process if task is None else _process_object(process, task)
    return {**report.details, _PROCESSES: processes}


def _process_object(process: JsonValue, task: ReportedTask) -> JsonValue:
    left = process.get(_THREADS) if isinstance(process, dict) else None
    if not isinstance(left, dict) or not isinstance(process, dict):
        return process
    read = iter(task.threads)
    threads: dict[str, JsonValue] = {}
    for tid, rest in left.items():
        thread = next(read, None) if isinstance(rest, dict) else None
        threads[tid] = rest
        if thread is not None and isinstance(rest, dict):
            threads[tid] = {**rest, **_lists(thread, task)}
    return {**process, _THREADS: threads}


def _lists(thread: ReportedThread, task: ReportedTask) -> dict[str, JsonValue]:
    lists: dict[str, list[JsonValue]] = {}
    for frame in thread.frames:
        if frame.is_inline:
            continue
        entries = lists.setdefault(_KERNEL if "kernel" in frame.details else _USER, [])
        if frame.image is None:
            entries.append(frame.details.get(_ODD))
        else:
            index = task.images[frame.image].details.get(_IMAGE_INDEX)
            entries.append([index, frame.offset])
    return {key: [*entries] for key, entries in lists.items()}
