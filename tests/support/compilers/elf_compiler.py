"""Real ELF files: of this machine by its own compiler, of others by the package ziglang."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

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
    subprocess.run(  # noqa: S603 (our own arguments)
        [*command, *options, *map(str, sources), "-o", str(output)],
        env={**os.environ, **caches},
        check=True,
        capture_output=True,
        text=True,
    )
    return output
