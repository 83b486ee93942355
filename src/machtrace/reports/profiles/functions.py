"""Frames and threads of profiles that have only names."""

from __future__ import annotations

import re
from dataclasses import replace

from machtrace.model.address import Avma, ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.profile import (
    MissingFrames,
    Profile,
    ProfileFrame,
    SampledThread,
    SamplingEnd,
    SamplingRun,
    StackTable,
    with_activity,
)
from machtrace.model.report import Report, ReportKind
from machtrace.model.snapshot import ProcessInfo, ThreadId, ThreadInfo
from machtrace.model.stack import NO_ADDRESS
from machtrace.model.symbol import Certainty, Frame, FrameStatus, SourceLocation, Symbol
from machtrace.reports.stacks.profiles import ProfileBuilder
from machtrace.reports.stacks.reported import report_of_profile

_LABEL = re.compile(r"(?P<name>.{0,4096}) \[(?P<id>[0-9]{1,19})\]")
_MISSING = {f"[{member.value}]": member for member in MissingFrames}
_SOURCE = re.compile(
    r".*\.(?:c|cc|cpp|cxx|c\+\+|h|hh|hpp|hxx|m|mm|swift|rs|go|py|pyx|js|ts|java|kt|rb|s|S|zig|d|f90)"
)
"""Files that a function's location names; other files are images."""


def missing_frames(name: str) -> MissingFrames | None:
    """Return what a function of this name stands for; None for a real one."""
    return _MISSING.get(name)


def named_frame(name: str, file: str = "") -> ProfileFrame:
    """Return the frame of a function; ``file`` is its source's path, or its image's."""
    if name in _MISSING and not file:
        return _MISSING[name]
    is_source = _SOURCE.fullmatch(file) is not None
    return Frame(
        address=NO_ADDRESS,
        status=FrameStatus.SYMBOLICATED,
        image=BinaryImage(
            path=file,
            uuid=None,
            arch=Arch.ARM64,
            format=ImageFormat.MACHO,
            load_address=Avma(0),
            header_svma=Svma(0),
            size=0,
        )
        if file and not is_source
        else None,
        symbol=Symbol(
            name=name,
            linkage_name="",
            offset=ImageOffset(0),
            size=None,
            certainty=Certainty.EXACT,
        ),
        has_symbol_offset=False,
        location=SourceLocation(file) if file and is_source else None,
    )


def labelled_thread(label: str, number: int) -> ThreadInfo:
    """Return the thread of a label, such as ``worker [4711]``."""
    match = _LABEL.fullmatch(label)
    name = label if match is None else match["name"]
    return ThreadInfo(
        id=ThreadId(number if match is None else int(match["id"])),
        index=number + 1,
        name=None if match is not None and name == "thread" else name or None,
    )


def is_labelled(name: str) -> bool:
    """Return whether a name is a thread's label."""
    return _LABEL.fullmatch(name) is not None


def named_profile(
    builder: ProfileBuilder, process: ProcessInfo, interval_ns: int, ticks: int
) -> Profile:
    """Return a builder's profile, of which nothing else is known."""
    return Profile(
        process=process,
        images=(),
        threads=with_activity(builder.threads, builder.samples),
        frames=tuple(builder.frames),
        stacks=StackTable(builder.callers, builder.frame_of_row),
        samples=builder.samples,
        run=SamplingRun(
            started_at_ns=0,
            duration_ns=max(1, ticks) * interval_ns,
            interval_ns=interval_ns,
            ticks=ticks,
            lost=0,
            end=SamplingEnd.DURATION,
        ),
    )


def report_without_architecture(profile: Profile, kind: ReportKind) -> Report:
    """Return the report of a profile whose format does not state the architecture."""
    report = report_of_profile(profile, kind)
    return replace(
        report,
        process=replace(report.process, code_type=None),
        images=tuple(replace(image, arch=None) for image in report.images),
    )


def sampled(info: ThreadInfo, samples: int) -> SampledThread:
    """Return a thread of which nothing else is known."""
    return SampledThread(info=info, samples=samples, stopped_ns=None, longest_stop_ns=None)
