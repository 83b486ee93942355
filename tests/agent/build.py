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
_HOOK_PATH = (
    "agent/counts.c",
    "agent/hooks.c",
    "agent/recorder.c",
    "agent/stack_tree.c",
    "native/walk/frame_records.c",
)
HOOK_PATH = (*_HOOK_PATH, "agent/linux/thread.c")
"""Sources of what hooks run: compiled without vector registers."""
_EVERYWHERE = (
    *SPOOL,
    "agent/agent.c",
    "agent/drain.c",
    "agent/images.c",
    "agent/imports.c",
    "agent/rules.c",
    "agent/stacks.c",
)
LINKED = (
    *HOOK_PATH,
    *_EVERYWHERE,
    "agent/linux/copy.c",
    "agent/linux/images.c",
    "agent/linux/imports.c",
    "agent/linux/stubs.S",
    "native/common/linux/registers.c",
    "native/inprocess/core/linux/capture.c",
    "native/inprocess/core/linux/copy.c",
    "native/inprocess/core/linux/images.c",
    "native/inprocess/core/linux/process.c",
)
LOADED = (*LINKED, "agent/start_at_load.c")
DARWIN = (
    *_HOOK_PATH,
    *_EVERYWHERE,
    "agent/darwin/chains.c",
    "agent/darwin/images.c",
    "agent/darwin/imports.c",
    "agent/darwin/methods.c",
    "agent/darwin/slots.c",
    "agent/darwin/stubs.S",
    "agent/darwin/thread.c",
    "agent/start_at_load.c",
    "native/common/darwin/memory.c",
    "native/inprocess/core/darwin/capture.c",
    "native/inprocess/core/darwin/copy.c",
    "native/inprocess/core/darwin/images.c",
    "native/inprocess/core/darwin/threads.c",
)
"""Sources for macOS and iOS."""


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
        link = ["-shared", "-Wl,-z,now", "-Wl,-z,nodelete"]
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
