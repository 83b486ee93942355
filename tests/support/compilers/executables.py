"""Real Mach-O executables on any machine, with the compiler and linker of the package ziglang.

Real ELF files: of this machine by its own compiler, of others by the package ziglang.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from machtrace.model.arch import Arch

COMPACT_TABLES = ("-fno-asynchronous-unwind-tables", "-funwind-tables")
"""Unwind tables as Xcode requests them: compact encodings where they suffice."""
DWARF_TABLES = ("-fasynchronous-unwind-tables",)
"""Call-frame information that holds at every instruction."""

_COMPILE_TARGETS = {
    Arch.ARM64: "arm64-apple-macos13.0",
    Arch.ARM64E: "arm64e-apple-macos13.0",
    Arch.X86_64: "x86_64-apple-macos13.0",
    Arch.I386: "i386-apple-macos10.9",
    Arch.ARMV7: "armv7-apple-ios9.0",
    Arch.ARMV7K: "armv7k-apple-watchos3.0",
}
_LINK_TARGETS = {Arch.ARM64: "aarch64-macos.13.0", Arch.X86_64: "x86_64-macos.13.0"}
_COMPILE_FLAGS = ("-ffreestanding", "-fno-stack-protector", "-fno-builtin", "-w")
_C = ("-std=gnu17",)
_CXX = ("-x", "c++", "-std=c++17", "-fno-exceptions", "-fno-rtti")
_CXX_SUFFIXES = frozenset({".cc", ".cpp", ".mm"})


def compile_macho(
    sources: Sequence[Path],
    output: Path,
    *,
    arch: Arch = Arch.ARM64,
    options: Sequence[str] = (),
    link_options: Sequence[str] = (),
) -> Path:
    """Compile ``sources`` and link them to ``output``; see the functions that do so.

    Returns:
        ``output``.

    Raises:
        OSError, subprocess.CalledProcessError: the compiler is not installed, or a source is bad.
    """
    objects = []
    for source in sources:
        object_file = output.with_name(f"{output.name}.{source.stem}{source.suffix}.o")
        compile_object(source, object_file, arch=arch, options=options)
        objects.append(object_file)
    return link_objects(objects, output, arch=arch, options=link_options)


def compile_object(
    source: Path, output: Path, *, arch: Arch = Arch.ARM64, options: Sequence[str] = ()
) -> Path:
    """Compile one source (C, C++ without exceptions, Objective-C or assembly) to an object.

    ``arch`` is ARM64, ARM64E, X86_64, I386, ARMV7 or ARMV7K; ``options`` are clang's. Caches are
    left beside the output.

    Returns:
        ``output``.

    Raises:
        OSError, subprocess.CalledProcessError: the compiler is not installed, or ``source`` is bad.
    """
    language = _CXX if source.suffix in _CXX_SUFFIXES else _C
    flags = ("-target", _COMPILE_TARGETS[arch], *language, *_COMPILE_FLAGS, *options)
    run_zig("clang", (*flags, "-c", str(source), "-o", str(output)), output.parent)
    return output


def link_objects(
    objects: Sequence[Path], output: Path, *, arch: Arch = Arch.ARM64, options: Sequence[str] = ()
) -> Path:
    """Link objects to an executable.

    Nothing is linked from outside: what a program calls it has to bring. ``arch`` is ARM64 or
    X86_64; ``options`` are clang's. Caches are left beside the output.

    Returns:
        ``output``.

    Raises:
        OSError, subprocess.CalledProcessError: the linker is not installed, or cannot link them.
    """
    files = (*map(str, objects), "-o", str(output))
    run_zig("cc", ("-target", _LINK_TARGETS[arch], "-nostdlib", *options, *files), output.parent)
    return output


def run_zig(command: str, arguments: Sequence[str], directory: Path) -> None:
    """Run one of zig's tools in ``directory``, where its caches are left, too.

    Raises:
        OSError, subprocess.CalledProcessError: it is not installed, or failed.
    """
    caches = {f"ZIG_{kind}_CACHE_DIR": str(directory / ".zig") for kind in ("GLOBAL", "LOCAL")}
    subprocess.run(
        (sys.executable, "-m", "ziglang", command, *arguments),
        cwd=directory,
        env={**os.environ, **caches},
        check=True,
        capture_output=True,
        text=True,
    )


_ALONE = ("-nostdlib", "-fno-sanitize=undefined", "-fno-stack-protector")


def compile_elf(
    sources: Sequence[Path],
    output: Path,
    *,
    target: str | None = None,
    options: Sequence[str] = (),
) -> Path:
    """Compile and link ``sources`` (C or assembly) to ``output``.

    ``target`` is one of zig's (``aarch64-linux-musl``): nothing is linked from outside then, and
    what is called must be defined, or left open by ``-shared`` among the ``options``. None is
    this machine, with its C library.

    Returns:
        ``output``.

    Raises:
        OSError, subprocess.CalledProcessError: the compiler is not installed, or a source is bad.
    """
    command: list[str]
    if target is None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise FileNotFoundError("cc")
        command = [compiler]
    else:
        command = [sys.executable, "-m", "ziglang", "cc", "-target", target, *_ALONE]
    caches = {f"ZIG_{kind}_CACHE_DIR": str(output.parent / ".zig") for kind in ("GLOBAL", "LOCAL")}
    subprocess.run(
        [*command, *options, *map(str, sources), "-o", str(output)],
        env={**os.environ, **caches},
        check=True,
        capture_output=True,
        text=True,
    )
    return output
