"""Build programs of tests/agent/programs with the agent's sources, by the system's compiler."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
WARNINGS = (
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wconversion",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
    "-Wvla",
    "-Werror",
)
INCLUDE = (f"-I{PROJECT / 'agent/include'}", f"-I{PROJECT / 'agent'}", f"-I{PROJECT / 'native'}")

TREE = ("agent/stack_tree.c",)
SPOOL = ("agent/spool.c", "agent/checksum.c")


def compiler() -> str:
    """Return the system's C compiler, or skip the test."""
    found = os.environ.get("CC") or shutil.which("cc")
    if found is None or not sysconfig.get_platform().startswith("linux"):
        pytest.skip("no C compiler for Linux")
    return found


def build(
    folder: Path, program: str, sources: Sequence[str], *flags: str, optimize: str = "-O2"
) -> Path:
    """Return a program, built unless an equal one is there."""
    options = [optimize, "-g", "-std=c11", "-fno-omit-frame-pointer", *WARNINGS, *flags]
    digest = hashlib.sha256(repr((program, sources, options)).encode()).hexdigest()[:12]
    output = folder / f"{Path(program).stem}-{digest}"
    if not output.exists():
        files = [PROGRAMS / program, *(PROJECT / source for source in sources)]
        command = [compiler(), *options, *INCLUDE, *map(str, files), "-o", str(output)]
        done = subprocess.run([*command, "-pthread", "-ldl"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return output


def run(program: Path, *arguments: object, timeout: float = 300, **options: object) -> str:
    """Return what a program prints."""
    done = subprocess.run(
        [str(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return str(done.stdout)


def numbers(line: str) -> dict[str, float]:
    """Return the values of a line of names and values."""
    words = line.split()
    return dict(zip(words[::2], map(float, words[1::2]), strict=True))
