"""Such a text as one report: the process that it is about, and the others."""

from __future__ import annotations

import re
from dataclasses import replace

from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report, ReportedTask, ReportKind
from machtrace.model.reported_process import ReportedProcess
from machtrace.reports.crash.header import Header
from machtrace.reports.source import ReportSource
from machtrace.reports.blocks import ProcessBlock

_BLOCK = re.compile(r"(?:Process|Powerstats for):[ \t]+(?P<name>\S.*)")
_MARK = re.compile(r"^(?:Event|Data Source|Steps):[ \t]", re.MULTILINE)
_SAMPLED_THREAD = re.compile(r"^  Thread 0x[0-9a-fA-F]{1,16} .{0,1000}[0-9] samples? \(", re.MULTILINE)
_HEAVIEST = "Heaviest stack for "
_LOOKED_AT = 1 << 16
_BUILD = "Build "


def recognises(source: ReportSource) -> bool:
    """Whether it has the labels of such a text, and blocks of processes."""
    return is_spindump(source.text)


def is_spindump(text: str) -> bool:
    """The same of a text that may be the body of a file."""
    head = text[:_LOOKED_AT]
    if _BLOCK.match(head) is not None and _SAMPLED_THREAD.search(head) is not None:
        return True  # blocks that were copied out of one
    return _MARK.search(head) is not None and (
        "\nProcess:" in text or "\nPowerstats for:" in text or f"\n{_HEAVIEST}" in text
    )


def read(source: ReportSource) -> tuple[Report, ...]:
    """The one report in it."""
    return (read_text(source.text),)


def read_text(text: str) -> Report:
    """The report of a text."""
    header = Header()
    heaviest: dict[str, list[JsonValue]] = {}
    stack: list[JsonValue] | None = None
    blocks: list[ProcessBlock] = []
    for line in text.split("\n"):
        match = _BLOCK.fullmatch(line)
        if match is not None:
            blocks.append(ProcessBlock())
            blocks[-1].begin(match["name"].rstrip())
        elif blocks:
            blocks[-1].read(line)
        elif line.startswith(_HEAVIEST):
            stack = heaviest.setdefault(line.rstrip(":"), [])
        elif stack is not None and line.strip():
            stack.append(line)
        else:
            stack = None
            if line.strip("- "):
                header.read(line)
            else:
                header.read("")
    return _report(header, [block.task() for block in blocks], heaviest)


def _report(
    header: Header, tasks: list[ReportedTask], heaviest: dict[str, list[JsonValue]]
) -> Report:
    incident, process, system = header.incident(), header.process(), header.system()
    details = header.details()
    kind = details.pop("Event", None)
    name, pid = details.pop("Command", None), details.get("PID")
    if isinstance(pid, str) and pid.isdecimal() and len(pid) < 10:  # noqa: PLR2004 - a pid's digits
        del details["PID"]
        process = replace(process, pid=int(pid))
    if isinstance(name, str):
        process = replace(process, name=name)
    about = _about(tasks, process)
    if system.os_build is not None and system.os_build.startswith(_BUILD):
        system = replace(system, os_build=system.os_build.removeprefix(_BUILD))
    main = ReportedTask(process=process) if about is None else tasks[about]
    is_micro = "Microstackshots" in str(details.get("Data Source", "")) or "microstackshots" in str(
        kind
    )
    return Report(
        kind=ReportKind.MICROSTACKSHOT if is_micro else ReportKind.SPINDUMP,
        incident=replace(incident, kind=kind if isinstance(kind, str) else None),
        process=_joined(process, main.process),
        trees=main.trees,
        images=main.images,
        system=system,
        others=tuple(task for index, task in enumerate(tasks) if index != about),
        details={**details, **heaviest},
    )


def _about(tasks: list[ReportedTask], process: ReportedProcess) -> int | None:
    """Which block is of the process that the labels before all blocks are of."""
    for index, task in enumerate(tasks):
        if process.pid is not None and task.process.pid == process.pid:
            return index
    named = [index for index, task in enumerate(tasks) if task.process.name == process.name]
    if named:
        return named[0]
    return 0 if len(tasks) == 1 and process.name is None else None


def _joined(first: ReportedProcess, block: ReportedProcess) -> ReportedProcess:
    """What the labels say of the process, and its own block, which says more."""
    known = {
        name: getattr(block, name) if getattr(block, name) is not None else getattr(first, name)
        for name in ReportedProcess.__dataclass_fields__
        if name != "details"
    }
    return ReportedProcess(**known, details=block.details)
