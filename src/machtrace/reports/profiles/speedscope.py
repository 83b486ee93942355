"""Profiles of speedscope (https://www.speedscope.app): sampled ones, a thread each.

Source: ``file-format-spec.ts`` of github.com/jlfwong/speedscope.
"""

from __future__ import annotations

import re
from math import gcd
from typing import NamedTuple

from machtrace.errors import FormatError
from machtrace.model.arch import Arch
from machtrace.model.profile import OUTERMOST, UNKNOWN, ProfileFrame
from machtrace.model.report import Report, ReportKind
from machtrace.model.snapshot import ProcessInfo
from machtrace.render.speedscope import CPU_SUFFIX
from machtrace.reports.profiles.functions import (
    labelled_thread,
    named_frame,
    named_profile,
    report_without_architecture,
    sampled,
)
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.json_values import (
    JsonObject,
    SchemaError,
    json_list,
    json_object,
    json_objects,
    json_text,
    text_or_none,
)
from machtrace.reports.stacks.profiles import INTERVAL_NS, ProfileBuilder

_UNITS = {
    "none": 0,
    "nanoseconds": 1,
    "microseconds": 1_000,
    "milliseconds": 1_000_000,
    "seconds": 1_000_000_000,
}
_NAME = re.compile(r"(?P<name>.{0,4096}) \[(?P<pid>[0-9]{1,10})\]")
_MAX_COUNT = 1 << 52


class _Sample(NamedTuple):
    time_ns: int
    thread: int
    stack: tuple[int, ...]
    """Outermost first."""
    weight: int
    """In nanoseconds, or a count."""
    cpu_ns: int = UNKNOWN


def recognises(source: ReportSource) -> bool:
    """Return whether it has speedscope's schema and tables."""
    value = source.value
    return isinstance(value, dict) and (
        "speedscope" in str(value.get("$schema")) and {"shared", "profiles"} <= value.keys()
    )


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its one report.

    Raises:
        FormatError: it violates the schema, or has a profile that is not sampled.
    """
    try:
        return (_read(json_object(source.value)),)
    except SchemaError as error:
        raise FormatError(
            str(error),
            source=source.name,
            offset=0,
            remedy="pass a file of sampled profiles, as machtrace writes them",
        ) from error


def _read(document: JsonObject) -> Report:
    shared = json_object(document["shared"])
    frames = [
        named_frame(json_text(entry.get("name")), text_or_none(entry.get("file")) or "")
        for entry in json_objects(shared.get("frames"))
    ]
    builder = ProfileBuilder()
    samples: list[_Sample] = []
    profiles = json_objects(document["profiles"])
    units = {str(profile.get("unit")) for profile in profiles}
    if not units <= _UNITS.keys():
        raise SchemaError(f"the unit {min(units - _UNITS.keys())}")
    profiles, cpu = _processor_times(profiles)
    for number, profile in enumerate(profiles):
        of_thread = _samples(profile, number, len(frames))
        if number in cpu:
            times = (sample.weight for sample in _samples(cpu[number], number, len(frames)))
            of_thread = [
                sample._replace(cpu_ns=cpu_ns)
                for sample, cpu_ns in zip(of_thread, times, strict=True)
            ]
        samples += of_thread
    is_time = units != {"none"}
    interval = gcd(*(sample.weight for sample in samples)) if is_time else 1
    interval = interval or INTERVAL_NS
    totals = [0] * len(profiles)
    for sample in samples:
        totals[sample.thread] += sample.weight // interval
    for number, profile in enumerate(profiles):
        info = labelled_thread(text_or_none(profile.get("name")) or "", number)
        builder.begin(sampled(info, totals[number]))
    rows: dict[tuple[int, ...], int] = {}
    for sample in sorted(samples, key=lambda one: (one.time_ns, one.thread)):
        row = rows.get(sample.stack)
        if row is None:
            row = rows[sample.stack] = _row(sample.stack, frames, builder)
        weight = sample.weight // interval
        builder.samples.append(sample.time_ns, sample.thread, row, weight, cpu_ns=sample.cpu_ns)
    match = _NAME.fullmatch(text_or_none(document.get("name")) or "")
    process = ProcessInfo(
        pid=None if match is None else int(match["pid"]),
        path=(text_or_none(document.get("name")) or "") if match is None else match["name"],
        arch=Arch.ARM64,
    )
    made = named_profile(
        builder, process, interval if is_time else INTERVAL_NS, max(totals, default=0)
    )
    return report_without_architecture(made, ReportKind.SPEEDSCOPE)


def _processor_times(
    profiles: list[JsonObject],
) -> tuple[list[JsonObject], dict[int, JsonObject]]:
    """Return the profiles, and those of processor time by the number of the one with their samples.

    machtrace writes a second profile of each thread that used any.
    """
    numbers = {str(profile.get("name")): number for number, profile in enumerate(profiles)}
    cpu: dict[int, JsonObject] = {}
    for profile in profiles:
        number = numbers.get(str(profile.get("name")).removesuffix(CPU_SUFFIX))
        if (
            number is not None
            and profiles[number] is not profile
            and profiles[number].get("samples") == profile.get("samples")
        ):
            cpu[number] = profile
    seconds = {id(profile) for profile in cpu.values()}
    firsts = [number for number, profile in enumerate(profiles) if id(profile) not in seconds]
    return (
        [profiles[number] for number in firsts],
        {new: cpu[number] for new, number in enumerate(firsts) if number in cpu},
    )


def _row(stack: tuple[int, ...], frames: list[ProfileFrame], builder: ProfileBuilder) -> int:
    rows = builder.calls(OUTERMOST, [frames[number] for number in reversed(stack)])
    return rows[-1] if rows else OUTERMOST


def _samples(profile: JsonObject, thread: int, frames: int) -> list[_Sample]:
    if profile.get("type") != "sampled":
        raise SchemaError(f"a profile of the type {profile.get('type')!r}")
    stacks, weights = json_list(profile.get("samples")), json_list(profile.get("weights"))
    if len(stacks) != len(weights):
        raise SchemaError("samples and weights differ in number")
    scale = _UNITS[str(profile.get("unit"))] or 1
    samples: list[_Sample] = []
    time = 0
    for stack, weight in zip(stacks, weights, strict=True):
        numbers = json_list(stack)
        for number in numbers:
            if type(number) is not int or not 0 <= number < frames:
                raise SchemaError(f"{number!r} is not a frame")
        if not isinstance(weight, int | float) or not 0 <= weight * scale < _MAX_COUNT - time:
            raise SchemaError(f"{weight!r} is not a weight")
        size = round(weight * scale)
        samples.append(_Sample(time, thread, tuple(numbers), size))  # type: ignore[arg-type]
        time += size
    return samples
