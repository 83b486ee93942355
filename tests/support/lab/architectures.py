"""The architectures that the lab builds for, as data. See ``tests/lab/README.md``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import pack_into
from typing import Protocol

from machtrace.model.arch import Arch
from tests.support.lab.arm64e_objects import SignedPointer, as_arm64, with_key_b
from tests.support.compilers.executables import (
    COMPACT_TABLES,
    DWARF_TABLES,
    compile_object,
    link_objects,
)

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
_MOST = ("-O0", "-O1", "-O2", "-Os", "-Oz", "-O2 no fp")
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
    """Of :data:`OPTIMISATIONS`."""
    compile: Compile
    link: Link
    is_for_lldb: bool = True
    """Whether lldb is asked for its stacks."""


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
    # Its instructions are one of two sets, as a compiler is told.
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
            _MOST,
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
        _arm("armv7", Arch.ARMV7, "-mthumb", _MOST),
        _arm("armv7-arm", Arch.ARMV7, "-marm"),
        _arm("armv7k", Arch.ARMV7K, "-mthumb"),
        _arm("armv7k-arm", Arch.ARMV7K, "-marm"),
    )
}
