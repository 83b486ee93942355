"""Real Mach-O executables on any machine, with the compiler and linker of the package ziglang."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from machtrace.model.arch import Arch

COMPACT_TABLES = ("-fno-asynchronous-unwind-tables", "-funwind-tables")
"""Unwind tables as Xcode asks for them: compact encodings where they suffice."""
DWARF_TABLES = ("-fasynchronous-unwind-tables",)
"""Call-frame information that holds at every instruction."""

_COMPILE_TARGETS = {Arch.ARM64: "arm64-apple-macos13.0", Arch.X86_64: "x86_64-apple-macos13.0"}
_LINK_TARGETS = {Arch.ARM64: "aarch64-macos.13.0", Arch.X86_64: "x86_64-macos.13.0"}
_COMPILE_FLAGS = ("-std=gnu17", "-ffreestanding", "-fno-stack-protector", "-fno-builtin", "-w")


def compile_macho(
    sources: Sequence[Path],
    output: Path,
    *,
    arch: Arch = Arch.ARM64,
    options: Sequence[str] = (),
    link_options: Sequence[str] = (),
) -> Path:
    """Compile ``sources`` (C, Objective-C or assembly) and link them to ``output``.

    Nothing is linked from outside: what a program calls it has to bring. ``arch`` is ARM64 or
    X86_64; ``options`` are clang's. Objects and caches are left beside the output.

    Returns:
        ``output``.

    Raises:
        OSError, subprocess.CalledProcessError: the compiler is not installed, or a source is bad.
    """
    objects = []
    for source in sources:
        object_file = output.with_name(f"{output.name}.{source.stem}{source.suffix}.o")
        flags = (*_COMPILE_FLAGS, *options)
        _zig(
            "clang",
            ("-target", _COMPILE_TARGETS[arch], *flags, "-c", str(source), "-o", str(object_file)),
            output.parent,
        )
        objects.append(str(object_file))
    _zig(
        "cc",
        ("-target", _LINK_TARGETS[arch], "-nostdlib", *link_options, *objects, "-o", str(output)),
        output.parent,
    )
    return output


def _zig(command: str, arguments: Sequence[str], directory: Path) -> None:
    caches = {f"ZIG_{kind}_CACHE_DIR": str(directory / ".zig") for kind in ("GLOBAL", "LOCAL")}
    subprocess.run(  # noqa: S603 (our own interpreter and arguments)
        (sys.executable, "-m", "ziglang", command, *arguments),
        cwd=directory,
        env={**os.environ, **caches},
        check=True,
        capture_output=True,
        text=True,
    )
