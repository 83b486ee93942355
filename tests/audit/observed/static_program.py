"""A program with two SDKs in it as static libraries, its linker's map, and what it calls."""

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.agent.build import compiler, library

PROGRAMS = Path(__file__).parent / "programs"
SOURCES = PROGRAMS / "static"
WATCHED = ("observed", "stat", "stat64", "fstat", "fstat64")
THREADS, CALLS = 16, 50


class Built(NamedTuple):
    """A stripped program, its map, and the file with its names."""

    program: Path
    link_map: Path
    unstripped: Path


def build(folder, *flags, linker=()):
    """Compile and link the program in ``folder``."""
    command = [compiler(), "-O2", "-g", "-fno-omit-frame-pointer", *flags]
    data = PROGRAMS / "data.c"
    run(command, "-shared", "-fPIC", data, "-o", folder / "libdata.so")
    sdks = {"alpha": ["-DOTHER=beta"], "beta": ["-DEARLY"]}
    for number, (name, extra) in enumerate(sdks.items(), 1):
        # The debug information has the path of the source, as a checkout of a dependency has it.
        vendor = folder / "vendor" / name
        vendor.mkdir(parents=True)
        (vendor / "sdk.c").write_text((SOURCES / "sdk.c").read_text(encoding="utf-8"))
        words = [f"-DSDK={number}", f"-DNAME={name}", f"-I{SOURCES}", *extra]
        run(command, "-c", vendor / "sdk.c", *words, "-o", folder / f"{name}.o")
        run(["ar", "rcs"], folder / f"lib{name}.a", folder / f"{name}.o")
    run(command, "-c", SOURCES / "main.c", "-o", folder / "main.o")
    link = [f"-L{folder}", "-lalpha", "-lbeta", "-ldata", "-ldl", "-pthread"]
    link += [f"-Wl,-rpath,{folder}", f"-Wl,-Map={folder / 'app.map'}", *linker]
    run(command, folder / "main.o", *link, "-o", folder / "app.full")
    run(["objcopy", "--strip-all"], folder / "app.full", folder / "app")
    return Built(folder / "app", folder / "app.map", folder / "app.full")


def run(command, *words, text=None):
    """Run a tool, which must succeed."""
    words = [*map(str, command), *map(str, words)]
    done = subprocess.run(words, check=False, capture_output=True, text=True, input=text)
    assert done.returncode == 0, done.stderr


def record(built, agent, spool):
    """Run the program with the agent; return the calls by library and function, as it counted."""
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library(agent)),
        "MACHTRACE_WATCH": ",".join(WATCHED),
        "MACHTRACE_SPOOL": str(spool),
    }
    words = [str(built.program), str(THREADS), str(CALLS)]
    done = subprocess.run(
        words, env=environment, check=True, timeout=60, capture_output=True, text=True
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    return {(name, function): int(calls) for name, function, calls in lines if int(calls)}
