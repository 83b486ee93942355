"""Builds of the lab's programs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.arch import Arch
from tests.support.emulated.cpu import EmulatedCpu
from tests.support.emulated.dyld import symbols_of
from tests.support.lab.architectures import (
    ARCHITECTURES,
    OPTIMISATIONS,
    TABLES,
    Architecture,
    SignedPointer,
    placed,
)
from tests.support.lab.programs import PROGRAMS, Program
from tests.support.lab.run import Conditions

_OUTLINED_UNPRESERVED = frozenset(range(19, 30)) | frozenset(range(72, 80))
"""Code that was cut out of a function changes that function's registers as its own."""
_TABLE_SECTIONS = ("__unwind_info", "__eh_frame", "__text", "__stubs", "__stub_helper")


@dataclass(frozen=True, slots=True)
class Build:
    """One program, built one way."""

    program: Program
    architecture: Architecture
    optimisation: str
    tables: str

    def __str__(self) -> str:
        name, built = self.program.name, self.optimisation
        return f"{self.architecture.name} {name} {built} {self.tables}"

    @property
    def unpreserved(self) -> frozenset[int]:
        """Registers, by DWARF number, that its calls need not preserve."""
        arch = self.architecture.arch
        if arch.is_arm64 and "-Oz" in OPTIMISATIONS[self.optimisation]:
            return _OUTLINED_UNPRESERVED
        return self.program.unpreserved.get(arch, frozenset())


@dataclass(frozen=True, slots=True)
class Built:
    """The files of a build."""

    build: Build
    contents: MachOFileContents
    stripped: MachOFileContents
    """Without symbols; code and unwind tables are the same."""
    signed: tuple[tuple[int, int, int], ...] = ()
    """Pointers in data to sign before it starts: (Svma, key, discriminator)."""
    symbols: Mapping[str, int] = field(default_factory=dict)
    """Svmas, by name."""

    @property
    def conditions(self) -> Conditions:
        """The conditions of its run."""
        program = self.build.program
        return Conditions(
            patches=program.patches(self.contents),
            prepare=self.sign if self.signed else None,
            signals=self.symbols if program.has_signals else None,
            unpreserved=self.build.unpreserved,
            between=tuple(self._code(name) for name in sorted(program.between_stacks)),
            every=program.every,
            each_place=program.each_place,
            limit=program.limit,
        )

    def _code(self, symbol: str) -> range:
        """Return the Svmas from a symbol to the next one."""
        start = self.symbols[symbol]
        return range(start, min(other for other in self.symbols.values() if other > start))

    @property
    def function_starts(self) -> list[int]:
        """Svmas of the symbols that are in code."""
        code = self.contents.image.code_sections
        return [
            address
            for address in self.symbols.values()
            if any(section.address <= address < section.end for section in code)
        ]

    def sign(self, cpu: EmulatedCpu) -> None:
        """Sign what dyld would."""
        for address, key, discriminator in self.signed:
            value = int.from_bytes(cpu.uc.mem_read(address, 8), "little")
            cpu.uc.mem_write(address, cpu.signed(value, key, discriminator).to_bytes(8, "little"))


def builds(
    programs: Sequence[str] = (),
    architectures: Sequence[str] = (),
    optimisations: Sequence[str] = (),
    tables: Sequence[str] = (),
) -> Iterator[Build]:
    """All builds, or those of the given names, in the table's order."""
    for architecture in ARCHITECTURES.values():
        for program in PROGRAMS.values():
            if not _is_wanted(architecture.name, architectures, program.architectures):
                continue
            if not _is_wanted(program.name, programs):
                continue
            for optimisation in (*architecture.optimisations, *program.further_optimisations):
                if _is_wanted(optimisation, optimisations, program.optimisations):
                    for table in program.tables:
                        if _is_wanted(table, tables):
                            yield Build(program, architecture, optimisation, table)


def _is_wanted(name: str, chosen: Sequence[str], possible: Collection[str] | None = None) -> bool:
    return (not chosen or name in chosen) and (possible is None or name in possible)


def make(build: Build, programs: Path, directory: Path) -> Built:
    """Compile and link a build twice, with symbols and without.

    Args:
        build: what to make.
        programs: the directory of the sources.
        directory: where its files go.

    Raises:
        OSError, subprocess.CalledProcessError: the compiler is not installed, or a source is bad.
    """
    path, stripped_path = directory / build.program.name, directory / "stripped"
    signed = _make(build, programs, path, is_stripped=False)
    objects = [_object(directory, build, source) for source in build.program.sources]
    options = build.program.link_options
    build.architecture.link(objects, stripped_path, options, is_stripped=True)
    contents = MachOFileContents(path.read_bytes(), build.program.name)
    stripped = MachOFileContents(stripped_path.read_bytes(), build.program.name)
    for name in _TABLE_SECTIONS:
        assert _section(contents, name) == _section(stripped, name), name
    symbols = symbols_of(contents)
    return Built(
        build=build,
        contents=contents,
        stripped=stripped,
        signed=tuple(placed(signed, symbols)),
        symbols=symbols,
    )


def _object(directory: Path, build: Build, source: str | Path) -> Path:
    source = Path(source)
    return directory / f"{build.program.name}.{source.stem}{source.suffix}.o"


def _make(
    build: Build,
    programs: Path,
    output: Path,
    *,
    is_stripped: bool,
    link_options: Sequence[str] = (),
) -> list[SignedPointer]:
    options = (
        *OPTIMISATIONS[build.optimisation],
        *TABLES[build.tables],
        *build.program.options,
    )
    signed: list[SignedPointer] = []
    objects = [_object(output.parent, build, source) for source in build.program.sources]
    for source, output_object in zip(build.program.sources, objects, strict=True):
        signed += build.architecture.compile(programs / source, output_object, options)
    link_options = (*build.program.link_options, *link_options)
    build.architecture.link(objects, output, link_options, is_stripped=is_stripped)
    return signed


def _section(contents: MachOFileContents, name: str) -> bytes | None:
    section = contents.image.section("__TEXT", name)
    if section is None:
        return None
    return bytes(contents.read_svma(section.address, section.size))


def build_program(
    programs: Path,
    name: str,
    output: Path,
    *,
    optimisation: str,
    tables: str = "compact",
    arch: Arch = Arch.ARM64,
    link_options: Sequence[str] = (),
) -> MachOFileContents:
    """Compile one program, and read it.

    Args:
        programs: the directory of the sources.
        name: one of :data:`~tests.support.lab.programs.PROGRAMS`.
        output: the executable to make.
        optimisation: one of :data:`~tests.support.lab.architectures.OPTIMISATIONS`.
        tables: ``compact`` or ``dwarf``.
        arch: one that the lab builds for.
        link_options: clang's, for the linker.

    Raises:
        OSError, subprocess.CalledProcessError: the compiler is not installed, or a source is bad.
    """
    build = Build(PROGRAMS[name], ARCHITECTURES[arch.value], optimisation, tables)
    _make(build, programs, output, is_stripped=False, link_options=link_options)
    return MachOFileContents(output.read_bytes(), name)


def unpreserved_registers(name: str, optimisation: str, arch: Arch = Arch.ARM64) -> frozenset[int]:
    """Registers, by DWARF number, that calls of a build need not preserve."""
    return Build(PROGRAMS[name], ARCHITECTURES[arch.value], optimisation, "").unpreserved
