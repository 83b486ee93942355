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

from scripts.build_agent import HOOK_PATH, INCLUDE, LINUX, WARNINGS

PROJECT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
TREE = ("agent/stack_tree.c",)
SPOOL = ("agent/spool.c", "agent/checksum.c")
LOADED = LINUX
LINKED = tuple(source for source in LOADED if source != "agent/start_at_load.c")


def compiler() -> str:
    """Return the system's C compiler, or skip the test."""
    found = os.environ.get("CC") or shutil.which("cc")
    if found is None or not sysconfig.get_platform().startswith("linux"):
        pytest.skip("no C compiler for Linux")
    return found


def compile_all(
    output: Path,
    files: Sequence[Path],
    options: Sequence[str],
    link: Sequence[str],
    cc: Sequence[str] = (),
) -> None:
    """Compile each file, those of hooks without vector registers, and link them."""
    cc = cc or [compiler()]
    objects: list[str] = []
    hook_path = {PROJECT / source for source in HOOK_PATH}
    for number, file in enumerate(files):
        to = output.with_suffix(f".{number}.o")
        extra = ["-mgeneral-regs-only"] if file in hook_path else []
        command = [*cc, *options, *extra, *INCLUDE, "-c", str(file), "-o", str(to)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        objects.append(str(to))
    sanitizers = [option for option in options if option.startswith("-fsanitize")]
    command = [*cc, *sanitizers, *objects, *link, "-o", str(output), "-pthread", "-ldl"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def name_of(stem: str, *what: object) -> str:
    return f"{stem}-{hashlib.sha256(repr(what).encode()).hexdigest()[:12]}"


def build(
    folder: Path,
    program: str,
    sources: Sequence[str],
    *flags: str,
    optimize: str = "-O2",
    link: Sequence[str] = (),
    cc: Sequence[str] = (),
) -> Path:
    """Return a program of these sources, built unless it has been."""
    options = [optimize, "-g", "-std=c11", "-fno-omit-frame-pointer", *WARNINGS, *flags]
    output = folder / name_of(Path(program).stem, program, sources, options, link, cc)
    if not output.exists():
        files = [PROGRAMS / program, *(PROJECT / source for source in sources)]
        compile_all(output, files, options, link, cc)
    return output


def library(folder: Path, *flags: str, cc: Sequence[str] = ()) -> Path:
    """Return the agent as a shared library, built unless it has been."""
    options = [
        *("-O2", "-g", "-std=c11", "-fno-omit-frame-pointer", "-fPIC", "-fvisibility=hidden"),
        *("-DMACHTRACE_AGENT_LIBRARY", *WARNINGS, *flags),
    ]
    output = folder / (name_of("libmachtrace", options, cc) + ".so")
    if not output.exists():
        files = [PROJECT / source for source in LOADED]
        link = ["-shared", "-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,-z,initfirst"]
        compile_all(output, files, options, link, cc)
    return output


def run(program: Path, *arguments: object, timeout: float = 300, **options: object) -> str:
    """Return what a program prints."""
    done = subprocess.run(
        [str(program), *map(str, arguments)],
        check=False,
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
