"""An app with two SDKs that call what is watched a known number of times; see its sources."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.agent.build import compiler

PROGRAMS = Path(__file__).parent / "programs"


def compile_program(output: Path, source: str, *words: str) -> None:
    """Compile a program of this folder."""
    command = [compiler(), "-O2", "-fno-omit-frame-pointer", str(PROGRAMS / source), *words]
    subprocess.run([*command, "-o", str(output), "-pthread"], check=True)


def build_app(folder: Path) -> Path:
    """Build libdata, libtwo and libone, which calls it, and the app; return the app."""
    shared = ["-shared", "-fPIC", f"-L{folder}", f"-Wl,-rpath,{folder}"]
    compile_program(folder / "libdata.so", "data.c", *shared)
    two = ["-DENTER=second", "-ldata"]
    compile_program(folder / "libtwo.so", "sdk.c", *shared, *two)
    first = ["-DENTER=first", "-DNEXT=second", "-ltwo", "-ldata"]
    compile_program(folder / "libone.so", "sdk.c", *shared, *first)
    links = [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lone", "-ltwo", "-ldata"]
    compile_program(folder / "app", "app.c", *links)
    return folder / "app"
