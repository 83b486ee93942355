"""Reports of a generated fleet: the stacks of emulated programs, on phones that do not exist.

Addresses are those of real stacks; what a report states besides is chosen by a random generator
with a fixed seed. Frames have no names: each build has a UUID of its own, and its symbols are
files of the package with that UUID.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from uuid import NAMESPACE_URL, UUID, uuid5

from machtrace.audit.observed.addresses import AddressFinder
from machtrace.audit.rules import load_rules
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.images.resolver import ImageResolver
from machtrace.model.address import Avma
from machtrace.model.incident.facts import (
    IncidentKind,
    LockOwner,
    TimeRange,
    Verdict,
    VerdictCertainty,
    WaitsFor,
    WatchedThread,
    WatchFacts,
)
from machtrace.model.report import (
    Adjustment,
    Incident,
    Report,
    ReportedException,
    ReportedFrame,
    ReportedImage,
    ReportedProcess,
    ReportedSystem,
    ReportedThread,
    ReportKind,
    SampledNode,
    SampledTree,
)
from machtrace.pipeline.backtraces import build_capture, snapshot
from machtrace.reports.stacks.crash_reports import crash_report_of
from machtrace.reports.writers import write_reports
from machtrace.targets.emulator import AUDITED_APP, PROGRAM
from machtrace.targets.emulator.audited import AuditedApp, EmulatedCall
from machtrace.targets.gdbremote.breakpoints import CallStop
from machtrace.targets.gdbremote.call_stacks import CallStacks
from machtrace.unwinder.unwinder import Unwinder

APP = "org.example.demo"
BUILDS = ("810", "811", "812", "813")
_DEVICES = 40
_DAYS = 14
_MODELS = ("iPhone13,2", "iPhone14,5", "iPhone15,2", "iPhone16,1", "iPad13,4")
_SYSTEMS = (("iPhone OS 17.6", "21G80"), ("iPhone OS 18.1", "22B83"))
_LAST_DAY = datetime(2026, 11, 20, tzinfo=UTC)
_PROGRAM = "/private/var/containers/Bundle/Application/Demo/Demo.app/Demo"
_CRASHES = ("ips", "ips", "apple")
"""Formats of crash reports."""
_MILLISECOND = 1_000_000
_PREFIX = "com.machtrace."


class Problem(NamedTuple):
    """A defect of the app: its thread, and its reports in each build."""

    kind: IncidentKind
    thread: str
    reports: tuple[int, int, int, int]
    """By build."""
    exception: str = ""
    duration_ms: int = 0


_SIGNALS = {"EXC_BAD_ACCESS": "SIGSEGV", "EXC_BREAKPOINT": "SIGTRAP", "EXC_CRASH": "SIGABRT"}
_PROBLEMS = (
    Problem(IncidentKind.CRASH, "prologue", (14, 12, 15, 48), "EXC_BAD_ACCESS"),
    Problem(IncidentKind.CRASH, "messages", (0, 0, 26, 31), "EXC_BREAKPOINT"),
    Problem(IncidentKind.CRASH, "recursion", (22, 19, 0, 0), "EXC_BAD_ACCESS"),
    Problem(IncidentKind.CRASH, "signed", (2, 3, 1, 3), "EXC_BAD_ACCESS"),
    Problem(IncidentKind.CRASH, "async", (4, 5, 4, 6), "EXC_CRASH"),
    Problem(IncidentKind.HANG, "main", (12, 14, 13, 34), duration_ms=900),
    Problem(IncidentKind.HANG, "network", (5, 6, 4, 5), duration_ms=2600),
    Problem(IncidentKind.CPU, "render", (4, 4, 6, 17), duration_ms=60_000),
    Problem(IncidentKind.MEMORY, "leaf", (3, 3, 4, 4)),
)


class Sent(NamedTuple):
    """A file of the fleet."""

    name: str
    data: bytes


def fleet_reports(seed: int = 17) -> Iterator[Sent]:
    """Yield the reports of the fleet: crashes, incidents, profiles and audits.

    Raises:
        MissingExtraError: the library that emulates is not installed.
    """
    choose = random.Random(seed)  # noqa: S311 - the same fleet each time
    base = _without_names(crash_report_of(build_capture(snapshot("emulated:demo"))))
    phones = [_phone(number, choose) for number in range(_DEVICES)]
    number = 0
    for problem in _PROBLEMS:
        for build, count in zip(BUILDS, problem.reports, strict=True):
            for _ in range(count):
                number += 1
                report = _of_phone(base, choose.choice(phones), build, number, choose)
                report = _with_problem(report, problem, choose)
                form = _CRASHES[number % len(_CRASHES)] if problem.exception else "json"
                yield Sent(f"{number:04}.{form}", write_reports([report], form))
    audited = _audit()
    for build in BUILDS:
        for phone in phones[:: len(BUILDS)]:
            for report in (_profile(base, build, choose), audited):
                number += 1
                sent = _of_phone(report, phone, build, number, choose)
                yield Sent(f"{number:04}.json", write_reports([sent], "json"))


def fleet_symbols() -> Iterator[Sent]:
    """Yield the programs of all builds, and the libraries of the audited one."""
    program = PROGRAM.read_bytes()
    own = MachOFileContents(program, PROGRAM.name).image.uuid
    if own is None:  # for the type checker: the file is the package's
        return
    for build in BUILDS:
        yield Sent(f"Demo-{build}", program.replace(own.bytes, _uuid_of(own, build).bytes))
    for path in sorted(AUDITED_APP.rglob("*")):
        if path.is_file():
            yield Sent(path.name, path.read_bytes())


def _uuid_of(own: UUID, build: str) -> UUID:
    return uuid5(NAMESPACE_URL, f"{own} {build}")


def _without_names(report: Report) -> Report:
    threads = (
        replace(thread, frames=tuple(map(_unnamed, thread.frames)), registers=None, details={})
        for thread in report.threads
    )
    return replace(report, threads=tuple(threads), termination=None, details={}, warnings=())


def _unnamed(frame: ReportedFrame) -> ReportedFrame:
    return frame._replace(symbol=None, location=None, details={})


def _phone(number: int, choose: random.Random) -> ReportedSystem:
    name, build = choose.choice(_SYSTEMS)
    key = uuid5(NAMESPACE_URL, f"phone {number}").hex
    return ReportedSystem(
        model=choose.choice(_MODELS), os_name=name, os_build=build, crash_reporter_key=key
    )


def _of_phone(
    report: Report, phone: ReportedSystem, build: str, number: int, choose: random.Random
) -> Report:
    day = BUILDS.index(build) * _DAYS / len(BUILDS) + choose.random() * _DAYS / len(BUILDS)
    time = _LAST_DAY - timedelta(days=_DAYS) + timedelta(days=day)
    images = tuple(
        replace(image, uuid=_uuid_of(image.uuid, build), path=_PROGRAM)
        if len(report.images) == 1 and isinstance(image.uuid, UUID)
        else image
        for image in report.images
    )
    return replace(
        report,
        images=images,
        system=phone,
        incident=Incident(
            id=str(uuid5(NAMESPACE_URL, f"incident {number}")),
            time=f"{time:%Y-%m-%d %H:%M:%S}.000 +0000",
        ),
        process=ReportedProcess(
            name="Demo",
            pid=400 + number,
            path=_PROGRAM,
            identifier=APP,
            version=f"2.{build[-1]}",
            build=build,
            code_type="ARM-64",
        ),
    )


def _with_problem(report: Report, problem: Problem, choose: random.Random) -> Report:
    threads = list(report.threads)
    at = next(at for at, each in enumerate(threads) if _name(each) == problem.thread)
    if problem.kind is IncidentKind.CRASH:
        threads[at] = replace(threads[at], crashed=True)
        return replace(
            report,
            threads=tuple(threads),
            exception=ReportedException(type=problem.exception, signal=_SIGNALS[problem.exception]),
        )
    watched = threads[at]
    spread = choose.lognormvariate(0, 0.6)
    duration = round(problem.duration_ms * spread) * _MILLISECOND
    is_hang = problem.kind is IncidentKind.HANG
    owner = LockOwner(None, threads[-1].id, recorded=True)
    return replace(
        report,
        kind=ReportKind.MACHTRACE,
        exception=None,
        incident=replace(report.incident, kind=problem.kind.value),
        watch=WatchFacts(
            id=report.incident.id or "",
            kind=problem.kind,
            certainty=VerdictCertainty.CERTAIN,
            began=TimeRange(0, 0),
            ended=TimeRange(duration, duration),
            seen_ns=0,
            pid=report.process.pid,
            verdict=Verdict.BLOCKED if is_hang else None,
            thread=WatchedThread(watched.id or 0, watched.name, is_main=at == 0),
            duration_ns=duration,
            waits_for=WaitsFor("mutex", owner=owner) if is_hang and at == 0 else None,
        ),
    )


def _name(thread: ReportedThread) -> str:
    return (thread.name or "").removeprefix(_PREFIX)


def _profile(report: Report, build: str, choose: random.Random) -> Report:
    """Return samples of all threads; drawing takes more of the last build."""
    trees = []
    for thread in report.threads:
        share = 3 if build == BUILDS[-1] and _name(thread) == "render" else 1
        samples = round(choose.uniform(60, 140) * share)
        trees.append(_path(reversed(thread.frames), samples, thread.name or ""))
    return replace(report, kind=ReportKind.SAMPLE, threads=(), exception=None, trees=tuple(trees))


def _path(frames: Iterator[ReportedFrame], samples: int, name: str) -> SampledTree:
    """Return a tree of one stack, the outermost frame first."""
    nodes = [SampledNode(at - 1 if at else None, samples, frame) for at, frame in enumerate(frames)]
    return SampledTree(nodes=tuple(nodes), name=name)


def _audit() -> Report:
    """Return the calls of privacy APIs of the emulated app, as a recording of it."""
    app = AuditedApp()
    files = ImageResolver.of((str(AUDITED_APP),))
    watched = AddressFinder(load_rules(), files).find(app.images)
    walker = CallStacks(app.snapshot(), Unwinder(files))
    stacks: list[Sequence[int]] = []

    def take(call: EmulatedCall) -> None:
        stop = CallStop(call.thread, call.time_ns, call.registers, (call.stack,))
        stacks.append((call.registers.pc, *walker.walk(stop).addresses))

    app.run(watched.watches, take)
    images = tuple(
        ReportedImage(
            uuid=image.uuid if isinstance(image.uuid, UUID) else None,
            name=Path(image.path).name,
            path=image.path,
            arch="arm64",
            load_address=image.load_address,
            size=image.size,
        )
        for image in app.images
    )

    numbers = {image.path: number for number, image in enumerate(app.images)}

    def frame(address: int, adjustment: Adjustment) -> ReportedFrame:
        image = app.images.find(Avma(address))
        number = None if image is None else numbers[image.path]
        offset = None if image is None else image.offset_of(Avma(address))
        return ReportedFrame(None, number, offset, adjustment)

    trees = []
    for stack in stacks:
        frames = [
            frame(address, Adjustment.RETURN if at else Adjustment.EXACT)
            for at, address in enumerate(stack)
        ]
        trees.append(_path(reversed(frames), 1, ""))
    return Report(kind=ReportKind.SPOOL, images=images, trees=tuple(trees))
