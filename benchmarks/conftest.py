"""Recorded threads of real programs: registers and stacks, stopped at random instructions."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import ImageList
from machtrace.model.memory import MemoryRegion, RegionMemory
from machtrace.model.snapshot import ProcessInfo, Snapshot, ThreadId, ThreadInfo, ThreadSnapshot
from tests.support.compilers.executables import COMPACT_TABLES, DWARF_TABLES, compile_macho
from tests.support.emulated.run import EmulatedRun, Moment
from tests.support.lab.policies import image_of

SOURCE = Path(__file__).parent / "programs" / "nested.c"
BUILDS = {
    "arm64 compact": (Arch.ARM64, ("-O2", *COMPACT_TABLES)),
    "arm64 dwarf": (Arch.ARM64, ("-Os", "-fomit-frame-pointer", *DWARF_TABLES)),
    "x86_64 compact": (Arch.X86_64, ("-O2", *COMPACT_TABLES)),
    "x86_64 dwarf": (Arch.X86_64, ("-O1", "-fomit-frame-pointer", *DWARF_TABLES)),
}
SNAPSHOTS = 10_000
SHALLOWEST, MAX_DEPTH = 10, 100
_RED_ZONE = 128
_ABOVE = 256
"""Bytes of the stack of who called the program: its frame record ends the stack."""
_EVERY = 331
"""Instructions between two recorded moments."""


class _EnoughError(Exception):
    """Enough is recorded."""


@dataclass(frozen=True)
class Recording:
    """Snapshots of one thread each, of several programs alternately, and their true stacks."""

    snapshots: tuple[Snapshot, ...]
    stacks: tuple[tuple[Avma, ...], ...]


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """:data:`SNAPSHOTS` snapshots of the programs of :data:`BUILDS` in random order."""
    directory = tmp_path_factory.mktemp("recorded")
    made: list[tuple[Snapshot, tuple[Avma, ...]]] = []
    for number, (arch, options) in enumerate(BUILDS.values()):
        program = directory / f"nested{number}"
        compile_macho([SOURCE], program, arch=arch, options=options)
        made += _recorded(program, arch, SNAPSHOTS // len(BUILDS))
    Random(3).shuffle(made)  # noqa: S311 (which comes first)
    return Recording(tuple(one for one, _ in made), tuple(stack for _, stack in made))


def _recorded(program: Path, arch: Arch, count: int) -> list[tuple[Snapshot, tuple[Avma, ...]]]:
    contents = MachOFileContents(program.read_bytes(), str(program))
    image = image_of(contents)
    mask = PacMask.of_width(47) if arch.is_arm64 else PacMask()
    process = ProcessInfo(pid=None, path=str(program), arch=arch, pointer_mask=mask)
    images, memory = ImageList([image]), RegionMemory()
    recorded: list[tuple[Snapshot, tuple[Avma, ...]]] = []

    def visit(moment: Moment) -> None:
        if not SHALLOWEST <= len(moment.addresses) <= MAX_DEPTH:
            return
        sp = moment.registers.sp or 0
        top = moment.callers[-1].sp + _ABOVE
        start = Avma(sp - _RED_ZONE)
        stack = MemoryRegion(start, bytes(moment.memory.read(start, top - start)))
        thread = ThreadSnapshot(
            info=ThreadInfo(id=ThreadId(len(recorded)), index=1),
            registers=moment.registers,
            stack=stack,
        )
        snapshot = Snapshot(process=process, threads=(thread,), images=images, memory=memory)
        recorded.append((snapshot, moment.addresses))
        if len(recorded) >= count:
            raise _EnoughError

    with suppress(_EnoughError):
        EmulatedRun(contents).run(visit, limit=50_000_000, every=_EVERY)
    assert len(recorded) == count, "the program ended too early"
    return recorded


@pytest.fixture
def installed() -> Callable[[str], str]:
    """Find a peer in ``MACHTRACE_BENCHMARK_PEERS``, this environment or the path, or skip."""

    def find(name: str) -> str:
        folders = [
            os.environ.get("MACHTRACE_BENCHMARK_PEERS", ""),
            str(Path(sys.executable).parent),
        ]
        program = shutil.which(name, path=os.pathsep.join([*folders, os.environ["PATH"]]))
        if program is None:
            pytest.skip(f"{name} is not installed")
        return program

    return find
