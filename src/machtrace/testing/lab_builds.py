"""The lab's programs, and the ways to build them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from machtrace.macho.contents import FileContents
from machtrace.model.arch import Arch
from machtrace.testing.macho_compiler import COMPACT_TABLES, DWARF_TABLES, compile_macho

NAMES = ("leaves", "frames", "registers", "switches", "alike", "async")
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
    "-Oz shared": ("-Oz", "-mllvm", "-homogeneous-prolog-epilog"),
}
ARM64_ONLY = frozenset({"-O2 pac", "-Oz shared"})
ASYNC_UNPRESERVED = {Arch.ARM64: frozenset({20, 22}), Arch.X86_64: frozenset({13, 14})}
"""Swift's self and async context: arguments of the functions of ``async.c``."""
OUTLINED_UNPRESERVED = frozenset(range(19, 30)) | frozenset(range(72, 80))
"""Code that was cut out of a function changes that function's registers as its own."""
TABLES = {"compact": COMPACT_TABLES, "dwarf": DWARF_TABLES}


def build_program(
    programs: Path,
    name: str,
    output: Path,
    *,
    optimisation: str,
    tables: str = "compact",
    arch: Arch = Arch.ARM64,
    link_options: Sequence[str] = (),
) -> FileContents:
    """Compile one program, and read it.

    Args:
        programs: the directory of the sources.
        name: one of :data:`NAMES`.
        output: the executable to make.
        optimisation: one of :data:`OPTIMISATIONS`.
        tables: one of :data:`TABLES`.
        arch: ARM64 or X86_64.
        link_options: clang's, for the linker.

    Raises:
        OSError, subprocess.CalledProcessError: the compiler is not installed, or a source is bad.
    """
    extra = ("-fswift-async-fp=always",) if name == "async" else ()
    compile_macho(
        [programs / f"{name}.c", programs / "support.c", programs / "support.S"],
        output,
        arch=arch,
        options=(*OPTIMISATIONS[optimisation], *TABLES[tables], *extra),
        link_options=link_options,
    )
    return FileContents(output.read_bytes(), name)


def unpreserved_registers(name: str, optimisation: str, arch: Arch = Arch.ARM64) -> frozenset[int]:
    """Registers, by DWARF number, that calls of a build need not preserve."""
    if arch is Arch.ARM64 and "-Oz" in OPTIMISATIONS[optimisation]:
        return OUTLINED_UNPRESERVED
    return ASYNC_UNPRESERVED[arch] if name == "async" else frozenset()
