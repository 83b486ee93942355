"""The lab's programs, compiled once, from which seeds are made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.arch import Arch
from tests.support.compilers.debug_programs import DSYMUTIL, INLINED_C, make_dsym
from tests.support.compilers.executables import compile_elf, compile_macho
from tests.support.lab.builds import build_program

ROOT = Path(__file__).parents[1]
_LAB = ROOT / "tests" / "lab" / "programs"
_ELF = ROOT / "tests" / "formats" / "dwarf" / "programs"
_CACHE = ROOT / "build" / "fuzz"

_MACHO_BUILDS = (
    ("frames", "-O2", "compact", Arch.ARM64),
    ("frames", "-O2", "compact", Arch.X86_64),
    ("frames", "-O2 no fp", "dwarf", Arch.ARM64),
    ("frames", "-O0", "dwarf", Arch.X86_64),
    ("registers", "-O1", "compact", Arch.X86_64),
    ("registers", "-Oz", "compact", Arch.ARM64),
    ("switches", "-O2", "compact", Arch.ARM64),
    ("switches", "-Os", "dwarf", Arch.X86_64),
    ("async", "-O2", "compact", Arch.ARM64),
    ("frames", "-O2", "compact", Arch.I386),
    ("registers", "-O1", "dwarf", Arch.I386),
    ("frames", "-O2", "compact", Arch.ARMV7),
    ("switches", "-Os", "compact", Arch.ARMV7),
)
_ELF_BUILDS = (
    ("x86_64", "x86_64-linux-musl", ("-O2", "-fomit-frame-pointer")),
    ("i386", "x86-linux-musl", ("-O2", "-fomit-frame-pointer")),
    ("arm64", "aarch64-linux-musl", ("-O2", "-mbranch-protection=standard")),
    ("arm", "arm-linux-musleabihf", ("-g", "-O2")),
)

_DEBUG_BUILDS = (
    ("dwarf4", ("-gdwarf-4",)),
    ("dwarf5", ("-gdwarf-5",)),
    ("compressed", ("-g", "-gz=zlib", "-Wl,--compress-debug-sections=zlib")),
)


@cache
def _directory() -> Path:
    """Return the folder for programs of these sources."""
    sources = sorted([*_LAB.iterdir(), *_ELF.iterdir()])
    key = sha256(b"\0".join(path.read_bytes() for path in sources if path.is_file()))
    key.update(repr((_MACHO_BUILDS, _ELF_BUILDS)).encode())
    directory = _CACHE / key.hexdigest()[:16]
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def cached(name: str) -> Path:
    """Return the path of a file that is built from the programs."""
    return _directory() / name


def part_of(output: Path) -> Path:
    """Return a path to build ``output`` at, separate from other processes that may do the same."""
    directory = output.parent / f"made-by-{os.getpid()}"
    directory.mkdir(exist_ok=True)
    return directory / output.name


@cache
def macho_programs() -> tuple[MachOFileContents, ...]:
    """Mach-O executables of each architecture that zig links, with both kinds of tables."""
    programs = []
    for name, optimisation, tables, arch in _MACHO_BUILDS:
        output = cached("-".join((name, optimisation.replace(" ", ""), tables, arch.value)))
        if not output.exists():
            part = part_of(output)
            build_program(
                _LAB,
                name,
                part,
                optimisation=optimisation,
                tables=tables,
                arch=arch,
            )
            part.replace(output)
        programs.append(MachOFileContents(output.read_bytes(), name))
    return tuple(programs)


@cache
def elf_programs() -> tuple[ElfFileContents, ...]:
    """ELF shared objects of four architectures."""
    return tuple(_elf_programs())


def _elf_programs() -> Iterator[ElfFileContents]:
    for name, target, options in _ELF_BUILDS:
        output = cached(f"elf-{name}")
        if not output.exists():
            part = part_of(output)
            source = next(iter(sorted(_ELF.glob("*.c"))))
            tables = "-fasynchronous-unwind-tables"
            compile_elf(
                [source], part, target=target, options=("-shared", "-fPIC", tables, *options)
            )
            part.replace(output)
        yield ElfFileContents(output.read_bytes(), name)


@cache
def debug_programs() -> tuple[Path, ...]:
    """Files with DWARF: of both versions, compressed, and a dSYM where dsymutil is installed."""
    source = cached("inlined.c")
    part_of(source).write_text(INLINED_C)
    part_of(source).replace(source)
    outputs = []
    for name, options in _DEBUG_BUILDS:
        output = cached(f"debug-{name}")
        if not output.exists():
            part = part_of(output)
            whole = ("-shared", "-O1", "-Wl,--build-id=sha1", *options)
            compile_elf([source], part, target="x86_64-linux-musl", options=whole)
            part.replace(output)
        outputs.append(output)
    dsym = cached("debug-dsym")
    if DSYMUTIL is not None and not dsym.exists():
        program = part_of(dsym)
        compile_macho([source], program, options=("-g", "-O1"), link_options=("-Wl,-e,_main",))
        make_dsym(program).replace(dsym)
    return (*outputs, *([dsym] if dsym.exists() else []))
