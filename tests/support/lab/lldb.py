"""lldb's stacks of the same moments, through cores.

lldb reads registers and memory from a Mach-O core, and the program from its file: symbols, unwind
tables and code, which is all that it has of a process on a device too.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.core.writer import core_bytes
from machtrace.model.address import Avma
from machtrace.model.image import ImageList
from machtrace.model.memory import MemoryRegion
from machtrace.model.snapshot import ProcessInfo, Snapshot, ThreadId, ThreadInfo, ThreadSnapshot
from tests.support.emulated.run import Moment
from tests.support.lab.policies import MASK

MOMENTS = 25
"""Moments of a build that lldb unwinds: the first ones of instructions that are evenly spread."""
_RED_ZONE = 256
_PAGE = 0x1000
_TIMEOUT = 300.0
_SCRIPT = Path(__file__).with_name("lldb_walks.py")


@dataclass(frozen=True, slots=True)
class RecordedMoment:
    """The contents of a core of one moment."""

    registers_and_stack: ThreadSnapshot
    regions: tuple[MemoryRegion, ...]
    truths: Sequence[tuple[Avma, ...]]
    """Any of them is right."""


def lldb_program() -> str | None:
    """Return the installed lldb, if any."""
    return next(filter(None, map(shutil.which, ("lldb-19", "lldb"))), None)


def lldb_version(program: str) -> str:
    """Return the version that lldb prints."""
    done = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=_TIMEOUT, check=True
    )
    return done.stdout.strip().splitlines()[0]


class MomentRecorder:
    """The first moment of each instruction, for lldb."""

    def __init__(self, contents: MachOFileContents, stack_end: int) -> None:
        """``stack_end``: of the main stack."""
        self._stack_end = stack_end
        self._data = [
            range(segment.vmaddr, segment.vmaddr + segment.vmsize)
            for segment in contents.image.segments
            if segment.name.startswith("__DATA") and segment.vmsize
        ]
        self._seen: set[int] = set()
        self._stride = 1
        self._by_pc: dict[int, RecordedMoment] = {}

    def is_new(self, pc: int) -> bool:
        """Return whether to store a moment at ``pc``: of many new ones every n-th."""
        if pc in self._seen:
            return False
        self._seen.add(pc)
        return len(self._seen) % self._stride == 0

    def keep(self, moment: Moment, truths: Sequence[tuple[Avma, ...]]) -> None:
        """Copy the registers and memory of a moment."""
        memory, registers = moment.memory, moment.registers
        data = [
            MemoryRegion(Avma(data.start), memory.read(Avma(data.start), len(data)))
            for data in self._data
        ]
        low = ((registers.sp or 0) - _RED_ZONE) & -16
        holding = next((data for data in self._data if low in data), None)
        if holding is None:  # on the main stack
            stack = MemoryRegion(Avma(low), memory.read(Avma(low), self._stack_end - low))
        else:
            stack = next(one for one in data if one.start == holding.start)
            data.remove(stack)
            low = self._main_stack_below(moment) or self._stack_end - _PAGE
            data.append(MemoryRegion(Avma(low), memory.read(Avma(low), self._stack_end - low)))
        info = ThreadInfo(id=ThreadId(1), index=1, is_main=True)
        thread = ThreadSnapshot(info=info, registers=registers, stack=stack)
        self._by_pc[registers.pc] = RecordedMoment(thread, tuple(data), truths)
        if len(self._by_pc) > 2 * MOMENTS:  # each may be megabytes
            self._by_pc = dict(list(self._by_pc.items())[::2])
            self._stride *= 2

    def _main_stack_below(self, moment: Moment) -> int | None:
        """Return the lowest address that the main stack uses at a moment on another stack."""
        used = [
            caller.sp
            for caller in moment.callers
            if not any(caller.sp in one for one in self._data)
        ]
        return (min(used) - _RED_ZONE) & -16 if used else None

    def chosen(self) -> list[RecordedMoment]:
        """At most :data:`MOMENTS` of them, evenly spread."""
        moments = list(self._by_pc.values())
        step = max(1, -(-len(moments) // MOMENTS))
        return moments[::step]


@dataclass(frozen=True, slots=True)
class Caller:
    """An image with the function that seems to have called main: the last frame is in it."""

    path: Path
    slide: int


def lldb_walks(
    program: str,
    moments: list[RecordedMoment],
    contents: MachOFileContents,
    path: Path,
    caller: Caller,
) -> list[tuple[Avma, ...]]:
    """Return the addresses that lldb finds at each moment.

    Args:
        program: lldb.
        moments: the stored moments.
        contents: the program, or its stripped twin.
        path: its file; the cores are made beside it, for a while.
        caller: what called the program.

    Raises:
        OSError, subprocess.SubprocessError: lldb cannot be run.
    """
    directory = path.parent
    arch = contents.image.arch
    process = ProcessInfo(pid=1, path=str(path), arch=arch, pointer_mask=MASK)
    cores = []
    for number, one in enumerate(moments):
        snapshot = Snapshot(process=process, threads=(one.registers_and_stack,), images=ImageList())
        core = directory / f"{number}.core"
        core.write_bytes(core_bytes(snapshot, one.regions))
        cores.append(str(core))
    images = [(str(path), 0), (str(caller.path), caller.slide % (1 << 64))]
    listed, answer = directory / "cores.json", directory / "walks.json"
    listed.write_text(json.dumps({"cores": cores, "images": images, "answer": str(answer)}))
    done = subprocess.run(
        [
            *(program, "--no-lldbinit", "--batch"),
            *("-o", f"command script import {_SCRIPT}"),
            *("-o", f"walk_cores {listed}"),
        ],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=True,
    )
    if not answer.exists():
        raise OSError(f"lldb wrote no stacks: {done.stderr or done.stdout}")
    walks: list[list[int]] = json.loads(answer.read_text())
    for written in cores:
        Path(written).unlink()
    return [tuple(map(Avma, walk)) for walk in walks]
