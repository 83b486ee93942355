"""The architectures that the lab builds for, as data. See ``tests/lab/README.md``.

Objects for arm64e, made such that linkers for arm64 take them.

The code is arm64e's as it is: it signs return addresses and pointers to functions. What a linker
and dyld do with pointers that are signed in data, the lab does in the emulator. Sources:
``mach-o/arm64/reloc.h``, and *Pointer Authentication*, "Mach-O authenticated relocations", of
LLVM's documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import Struct, pack_into, unpack_from
from typing import Protocol

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.model.arch import Arch
from tests.support.compilers.executables import (
    COMPACT_TABLES,
    DWARF_TABLES,
    compile_object,
    link_objects,
)

_OBJECT_SUBTYPE_OFFSET = 8
_ARM64_ALL = 0
_RELOCATION = Struct("<iI")
_UNSIGNED, _AUTHENTICATED = 0, 11
_TYPE_SHIFT = 28


@dataclass(frozen=True, slots=True)
class SignedPointer:
    """A pointer in data that dyld signs."""

    symbol: str
    """The symbol that contains it."""
    offset: int
    """Bytes from that symbol."""
    key: int
    """0 to 3: IA, IB, DA, DB."""
    discriminator: int
    has_address_diversity: bool
    """The pointer's own address is mixed into the discriminator."""
    section: str = ""
    """The object's section."""


_KEY_B, _SIGNAL_FRAME = b"zRB\0", b"zRS\0"
"""Augmentations of CIEs: the linker of ziglang ends where it sees the first."""


def with_key_b(executable: bytes) -> bytes:
    """Restore a linked executable's CIEs as they were before :func:`as_arm64`."""
    return executable.replace(_SIGNAL_FRAME, _KEY_B)


def as_arm64(data: bytes) -> tuple[bytes, list[SignedPointer]]:
    """Convert an object for arm64e to arm64; also return which of its pointers are to be signed."""
    contents = MachOFileContents(data, "object")
    changed = bytearray(data)
    pack_into("<I", changed, _OBJECT_SUBTYPE_OFFSET, _ARM64_ALL)
    symbols = _symbols(contents)
    pointers: list[SignedPointer] = []
    for section in contents.image.sections:
        for at in range(section.reloff, section.reloff + 8 * section.nreloc, 8):
            address, information = _RELOCATION.unpack_from(data, at)
            if information >> _TYPE_SHIFT != _AUTHENTICATED:
                continue
            information &= (1 << _TYPE_SHIFT) - 1
            _RELOCATION.pack_into(changed, at, address, information | _UNSIGNED << _TYPE_SHIFT)
            place = section.offset + address
            (value,) = unpack_from("<Q", data, place)
            # The addend is signed: 32 bits.
            pack_into("<q", changed, place, (value & 0xFFFFFFFF ^ 1 << 31) - (1 << 31))
            slot = section.address + address
            start, name = max(symbol for symbol in symbols if symbol[0] <= slot)
            pointers.append(
                SignedPointer(
                    symbol=name,
                    offset=slot - start,
                    key=value >> 49 & 3,
                    discriminator=value >> 32 & 0xFFFF,
                    has_address_diversity=bool(value >> 48 & 1),
                    section=section.name,
                )
            )
    return bytes(changed).replace(_KEY_B, _SIGNAL_FRAME), pointers


def _symbols(contents: MachOFileContents) -> list[tuple[int, str]]:
    table = parse_symbols(contents)
    rows = table.is_in_section.nonzero()[0].tolist()
    named = [(int(table.n_value[row]), table.name(row)) for row in rows]
    return [(value, name) for value, name in named if not name.startswith(("ltmp", "l_", "L"))]


def placed(
    pointers: list[SignedPointer], symbols: Mapping[str, int]
) -> Iterator[tuple[int, int, int]]:
    """(Svma, key, discriminator) of each, by the addresses of the symbols of an executable."""
    for pointer in pointers:
        slot = symbols[pointer.symbol] + pointer.offset
        discriminator = pointer.discriminator
        if pointer.has_address_diversity:
            discriminator = slot & (1 << 48) - 1 | discriminator << 48
        yield slot, pointer.key, discriminator


TABLES = {"compact": COMPACT_TABLES, "dwarf": DWARF_TABLES}
OPTIMISATIONS = {
    "-O0": ("-O0",),
    "-O1": ("-O1",),
    "-O2": ("-O2",),
    "-O3": ("-O3",),
    "-Os": ("-Os",),
    "-Oz": ("-Oz",),
    "-O2 no fp": ("-O2", "-fomit-frame-pointer"),
    "-Oz no fp": ("-Oz", "-fomit-frame-pointer"),
    "-O2 pac": ("-O2", "-mbranch-protection=pac-ret+leaf", "-march=armv8.3-a"),
    # The driver keeps it from Apple's targets, but the code is made for them.
    "-O2 probes": ("-O2", "-Xclang", "-fstack-clash-protection"),
    "-O2 probes no fp": (
        *("-O2", "-fomit-frame-pointer"),
        *("-Xclang", "-fstack-clash-protection"),
    ),
    "-Oz shared": ("-Oz", "-mllvm", "-homogeneous-prolog-epilog"),
}
_EVERYWHERE = ("-O0", "-O1", "-O2", "-O3", "-Os", "-Oz", "-O2 no fp", "-Oz no fp")
_USUAL_OPTIONS = ("-O0", "-O1", "-O2", "-Os", "-Oz", "-O2 no fp")
"""Without what differs least from others."""
_FEW = ("-O0", "-O2", "-O2 no fp")
"""For what differs from another architecture in its encoding alone, or in its tables."""

Compile = Callable[[Path, Path, Sequence[str]], list[SignedPointer]]
"""``(source, object, options)`` → what of it dyld would sign."""


class Link(Protocol):
    """Makes an executable of objects."""

    def __call__(
        self, objects: Sequence[Path], output: Path, options: Sequence[str], /, *, is_stripped: bool
    ) -> None:
        """Link ``objects`` to ``output``; ``options`` are clang's."""
        ...


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture of the lab."""

    name: str
    arch: Arch
    optimisations: tuple[str, ...]
    """Keys of :data:`OPTIMISATIONS`."""
    compile: Compile
    link: Link
    is_for_lldb: bool = True
    """Whether lldb unwinds its stacks, too."""


def _compiled(
    arch: Arch, source: Path, output: Path, options: Sequence[str]
) -> list[SignedPointer]:
    compile_object(source, output, arch=arch, options=options)
    return []


def _linked(
    arch: Arch, objects: Sequence[Path], output: Path, options: Sequence[str], *, is_stripped: bool
) -> None:
    link_objects(objects, output, arch=arch, options=(*options, *(("-s",) if is_stripped else ())))


_SUBTYPE_OFFSET, _SUBTYPE_ARM64E = 8, 2
_ARM64E_OPTIONS = ("-fptrauth-returns", "-fptrauth-calls", "-fptrauth-auth-traps")


def _compiled_arm64e(source: Path, output: Path, options: Sequence[str]) -> list[SignedPointer]:
    """With all of arm64e's ABI that C has a use for."""
    compile_object(source, output, arch=Arch.ARM64E, options=(*_ARM64E_OPTIONS, *options))
    data, pointers = as_arm64(output.read_bytes())
    output.write_bytes(data)
    return pointers


def _linked_arm64e(
    objects: Sequence[Path], output: Path, options: Sequence[str], *, is_stripped: bool
) -> None:
    _linked(Arch.ARM64, objects, output, options, is_stripped=is_stripped)
    data = bytearray(with_key_b(output.read_bytes()))
    pack_into("<I", data, _SUBTYPE_OFFSET, _SUBTYPE_ARM64E)
    output.write_bytes(data)


def _linked_i386(
    objects: Sequence[Path], output: Path, options: Sequence[str], *, is_stripped: bool
) -> None:
    from tests.support.linker32.linker import link_macho

    linked = link_macho(
        [path.read_bytes() for path in objects],
        is_stripped=is_stripped,
        keeps_all_frames=True,
        has_stubs=any("dynamic_lookup" in option for option in options),
    )
    output.write_bytes(linked)


def _compiled_arm(
    arch: Arch, mode: str, source: Path, output: Path, options: Sequence[str]
) -> list[SignedPointer]:
    compile_object(source, output, arch=arch, options=(mode, *options))
    return []


def _linked_arm(
    objects: Sequence[Path], output: Path, options: Sequence[str], *, is_stripped: bool
) -> None:
    from tests.support.linker32.linker import link_macho

    del options
    output.write_bytes(link_macho([path.read_bytes() for path in objects], is_stripped=is_stripped))


def _arm(name: str, arch: Arch, mode: str, optimisations: tuple[str, ...] = _FEW) -> Architecture:
    # One of two instruction sets, by a compiler option.
    compiled = partial(_compiled_arm, arch, mode)
    return Architecture(name, arch, optimisations, compiled, _linked_arm)


ARCHITECTURES = {
    one.name: one
    for one in (
        Architecture(
            "arm64",
            Arch.ARM64,
            (*_EVERYWHERE, "-O2 pac", "-Oz shared"),
            partial(_compiled, Arch.ARM64),
            partial(_linked, Arch.ARM64),
        ),
        Architecture(
            "arm64e",
            Arch.ARM64E,
            _USUAL_OPTIONS,
            _compiled_arm64e,
            _linked_arm64e,
        ),
        Architecture(
            "x86_64",
            Arch.X86_64,
            _EVERYWHERE,
            partial(_compiled, Arch.X86_64),
            partial(_linked, Arch.X86_64),
        ),
        Architecture(
            "i386",
            Arch.I386,
            _EVERYWHERE,
            partial(_compiled, Arch.I386),
            _linked_i386,
        ),
        _arm("armv7", Arch.ARMV7, "-mthumb", _USUAL_OPTIONS),
        _arm("armv7-arm", Arch.ARMV7, "-marm"),
        _arm("armv7k", Arch.ARMV7K, "-mthumb"),
        _arm("armv7k-arm", Arch.ARMV7K, "-marm"),
    )
}
