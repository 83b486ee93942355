"""Build the program of ``emulated:demo``: ``python -m tests.support.compilers.demo``.

The compiler and linker come with the package ziglang. One version of it gives the same bytes for
the same sources: no debug information, path or time is written.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

from machtrace.targets.emulator import PROGRAM

SOURCES = Path(__file__).parents[3] / "native" / "demo"
BUILT_WITH = SOURCES / "built-with"
"""One line that names the compiler which built ``demo.macho``, as :func:`compiler` returns it."""

_CLANG = (sys.executable, "-m", "ziglang", "clang")
_LINK = (sys.executable, "-m", "ziglang", "cc")

_FLAGS = (
    "-target",
    "arm64-apple-macos13.0",
    "-Os",
    "-std=gnu17",
    "-ffreestanding",
    "-fno-stack-protector",
    # Unwind tables as Xcode requests them: compact encodings where they suffice.
    "-fno-asynchronous-unwind-tables",
    "-funwind-tables",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-Werror",
)
_OBJECTIVE_C = ("-fno-objc-arc", "-fno-objc-convert-messages-to-runtime-calls")
"""Flags of sources with the suffix ``.m``."""

_SOURCES: dict[str, tuple[str, ...]] = {
    "stubs.S": (),
    "runtime.c": (),
    "runloop.c": (),
    "objects.m": (),
    "application.m": (),
    "messages.m": (),
    "threads.c": (),
    # Frames that hold an async context are tagged, whatever the deployment target.
    "tasks.c": ("-fswift-async-fp=always",),
    # What arm64e code does, in an arm64 object: the linker takes no arm64e ones.
    "signed.c": ("-mbranch-protection=pac-ret",),
}
"""By name of the file, with the flags that it needs besides; in the order they are linked."""

_LINK_FLAGS = ("-target", "aarch64-macos.13.0", "-nostdlib", "-Wl,-dead_strip_dylibs")


def compiler() -> str:
    """Return the installed compiler's name and version, such as ``ziglang 0.17.0``.

    Raises:
        OSError, subprocess.CalledProcessError: it is not installed, or does not run.
    """
    command = (sys.executable, "-m", "ziglang", "version")
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return f"ziglang {done.stdout.strip()}"


def build(output: Path) -> None:
    """Compile and link the program to ``output``.

    Raises:
        OSError, subprocess.CalledProcessError: the compiler is not installed, or a source is bad.
    """
    with TemporaryDirectory() as name:
        work = Path(name)
        for file in SOURCES.glob("*.[chmS]"):
            copyfile(file, work / file.name)
        objects = [compile_source(Path(each), work, flags) for each, flags in _SOURCES.items()]
        # The ad-hoc signature's identifier is the output's name.
        link(("-Wl,-e,_start", *objects, "-o", PROGRAM.name), work)
        copyfile(work / PROGRAM.name, output)


def compile_source(source: Path, directory: Path, flags: Sequence[str] = ()) -> str:
    """Compile a source in a directory; return the object's name there."""
    objc = _OBJECTIVE_C if source.suffix == ".m" else ()
    name = f"{source.name}.o"
    _run((*_CLANG, *_FLAGS, *objc, *flags, "-c", str(source), "-o", name), directory)
    return name


def link(arguments: Sequence[str], directory: Path) -> None:
    """Link objects in a directory."""
    _run((*_LINK, *_LINK_FLAGS, *arguments), directory)


def _run(command: Sequence[str], directory: Path) -> None:
    # The linker's caches go to the temporary directory, too.
    caches = {f"ZIG_{kind}_CACHE_DIR": str(directory / ".zig") for kind in ("GLOBAL", "LOCAL")}
    subprocess.run(command, cwd=directory, env={**os.environ, **caches}, check=True)


def _main() -> None:
    parser = argparse.ArgumentParser(description="Build the program of the target emulated:demo.")
    parser.add_argument("output", nargs="?", type=Path, default=PROGRAM, help="default: in place")
    output: Path = parser.parse_args().output
    build(output)
    if output == PROGRAM:
        BUILT_WITH.write_text(compiler() + "\n")


if __name__ == "__main__":
    _main()
