"""Stacks of the same moments as debuggers find them, through cores and the image's file.

A debugger gets what it has of a crash: registers, the stack, and the file at its load address. Its
stack is right if it begins with all true addresses of the image; what it adds where the image was
called from does not count, since no debugger knows the emulator's caller.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from machtrace.formats.elf.core.writer import core_bytes as elf_core
from machtrace.formats.elf.structs import PT_LOAD
from machtrace.formats.macho.core.writer import core_bytes as macho_core
from machtrace.formats.object_file import ObjectFile, sniff
from machtrace.model.address import Avma, FileOffset, PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import ImageFormat, ImageList
from machtrace.model.snapshot import (
    FileMapping,
    LinuxFacts,
    ProcessInfo,
    Snapshot,
    ThreadId,
    ThreadInfo,
    ThreadSnapshot,
)
from tests.support.lab.lldb import lldb_program, lldb_version
from tests.support.published.files import Subject
from tests.support.published.results import PeerShare, Sample

SAMPLES = 200
"""Moments of a file that each debugger unwinds."""
_AT_ONCE = 25
"""Cores that one process of a debugger reads: it never returns all of their memory."""
_TIMEOUT = 600.0
_MASK = PacMask.of_width(47)
_PAGE = 0x1000
_SCRIPTS = Path(__file__).parents[1] / "lab"
_LLDB_SCRIPT, _GDB_SCRIPT = _SCRIPTS / "lldb_walks.py", _SCRIPTS / "gdb_walks.py"
_GDBS = ("gdb-multiarch", "gdb")
_GDB_ARCHITECTURES = {Arch.X86_64: "i386:x86-64", Arch.ARM64: "aarch64"}


def peer_shares(subject: Subject, samples: Sequence[Sample]) -> dict[str, PeerShare]:
    """Return the share of ``samples`` of each debugger that can read cores of the file's format."""
    with TemporaryDirectory(prefix="published-peers-") as directory:
        contents, thin = _thin_file(subject.path, subject.architecture, Path(directory))
        shares = {"lldb": _share(_lldb_walks, contents, thin, samples)}
        if contents.format is ImageFormat.ELF:
            shares["gdb"] = _share(_gdb_walks, contents, thin, samples)
    return shares


def debuggers() -> str:
    """Return the versions of the installed debuggers."""
    programs = (lldb_program(), next(filter(None, map(shutil.which, _GDBS)), None))
    return " and ".join(lldb_version(program) for program in programs if program) or "no debugger"


def _share(walks: object, contents: ObjectFile, path: Path, samples: Sequence[Sample]) -> PeerShare:
    assert callable(walks)
    right = 0
    try:
        for start in range(0, len(samples), _AT_ONCE):
            part = samples[start : start + _AT_ONCE]
            found: list[list[int]] = walks(contents, path, part)
            right += sum(map(_is_right, found, (sample.truth for sample in part)))
    except (OSError, subprocess.SubprocessError) as problem:
        return PeerShare(0, 0, " ".join(str(problem).split())[:200])
    return PeerShare(right, len(samples))


def _is_right(walk: Sequence[int], truth: Sequence[int]) -> bool:
    known = len(truth) - 1  # without the emulator's caller
    return [_MASK.strip(address) for address in walk[:known]] == list(truth[:known])


def _thin_file(path: Path, architecture: str, directory: Path) -> tuple[ObjectFile, Path]:
    for part in sniff(path.read_bytes(), path.name):
        if part.arch_name == architecture:
            thin = directory / path.name
            thin.write_bytes(part.data)
            return part.open(), thin
    raise OSError(f"{path.name} has no slice for {architecture}")


def _cores(contents: ObjectFile, path: Path, samples: Iterable[Sample]) -> list[str]:
    arch = contents.image.arch
    process = ProcessInfo(pid=1, path=str(path), arch=arch, pointer_mask=_MASK)
    cores = []
    for number, sample in enumerate(samples):
        info = ThreadInfo(id=ThreadId(1), index=1, is_main=True)
        thread = ThreadSnapshot(info=info, registers=sample.registers, stack=sample.stack)
        if contents.format is ImageFormat.ELF:
            facts = LinuxFacts(file_mappings=_mappings(contents, path, sample.slide))
            snapshot = Snapshot(process=process, threads=(thread,), images=ImageList(), linux=facts)
            data = elf_core(snapshot)
        else:
            snapshot = Snapshot(process=process, threads=(thread,), images=ImageList())
            data = macho_core(snapshot)
        core = path.parent / f"{number}.core"
        core.write_bytes(data)
        cores.append(str(core))
    return cores


def _mappings(contents: ObjectFile, path: Path, slide: int) -> tuple[FileMapping, ...]:
    assert contents.format is ImageFormat.ELF
    mappings = []
    for segment in contents.image.segments:
        if segment.type == PT_LOAD and segment.file_size:
            skipped = segment.address % _PAGE
            end = -(-(segment.address + segment.file_size) // _PAGE) * _PAGE
            mappings.append(
                FileMapping(
                    Avma(segment.address - skipped + slide),
                    Avma(end + slide),
                    FileOffset(segment.offset - skipped),
                    str(path),
                )
            )
    return tuple(mappings)


def _lldb_walks(contents: ObjectFile, path: Path, samples: Sequence[Sample]) -> list[list[int]]:
    program = lldb_program()
    if program is None:
        raise OSError("lldb is not installed")
    listed = _listed(contents, path, samples)
    _run(
        program,
        *("--no-lldbinit", "--batch", "-o", "settings set symbols.enable-external-lookup false"),
        *("-o", f"command script import {_LLDB_SCRIPT}", "-o", f"walk_cores {listed}"),
    )
    return _answer(path)


def _gdb_walks(contents: ObjectFile, path: Path, samples: Sequence[Sample]) -> list[list[int]]:
    name = _GDB_ARCHITECTURES[contents.image.arch]
    program = _gdb_for(name)
    if program is None:
        raise OSError(f"no gdb for {name} is installed")
    listed = _listed(contents, path, samples)
    _run(
        program,
        *("-nx", "-batch", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off"),
        *("-ex", f"python WALKS = {str(listed)!r}", "-ex", f"source {_GDB_SCRIPT}"),
    )
    return _answer(path)


@cache
def _gdb_for(architecture: str) -> str | None:
    """Return a gdb that knows an architecture."""
    for program in filter(None, map(shutil.which, _GDBS)):
        done = subprocess.run(
            [program, "-nx", "-batch", "-ex", f"set architecture {architecture}"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
        if "Undefined item" not in done.stderr:
            return program
    return None


def _listed(contents: ObjectFile, path: Path, samples: Sequence[Sample]) -> Path:
    cores = _cores(contents, path, samples)
    listed = path.parent / "cores.json"
    slide = samples[0].slide
    answer = path.parent / "walks.json"
    answer.unlink(missing_ok=True)
    listed.write_text(
        json.dumps({"cores": cores, "images": [(str(path), slide)], "answer": str(answer)})
    )
    return listed


def _run(*command: str) -> None:
    subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True)


def _answer(path: Path) -> list[list[int]]:
    answer = path.parent / "walks.json"
    if not answer.exists():
        raise OSError("the debugger wrote no stacks")
    walks: list[list[int]] = json.loads(answer.read_text())
    return walks
