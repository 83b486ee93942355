"""Small Mach-O libraries of known functions, compiled once a session, and their stripped twins."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from machtrace.model.arch import Arch
from tests.support.compilers.executables import COMPACT_TABLES, compile_object

LIBRARY = """
extern int outside(int);
#define LOCAL static __attribute__((noinline, used))
LOCAL int first_local(int x) { return outside(x) * 3; }
LOCAL int second_local(int x) { return outside(x + 1) * 5; }
__attribute__((noinline)) int first_export(int x) { return first_local(x) + second_local(x); }
LOCAL int third_local(int x) { return outside(x + 2) * 7; }
LOCAL int fourth_local(int x) { return third_local(x) ^ outside(x); }
__attribute__((noinline)) int second_export(int x) { return fourth_local(x) - third_local(x); }
__asm__(".globl _alias_of_second\\n.set _alias_of_second, _second_export");
int table[4] = {1, 2, 3, 4};
const char *const words = "not code";
"""

Twins = Callable[[Arch], tuple[Path, Path]]


def peer_tool(name: str) -> str:
    """Return the path of one of llvm's tools; skip the test without it."""
    found = shutil.which(f"{name}-19") or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed; it makes the files that are read here")
    return found


@pytest.fixture(scope="session")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    """:data:`LIBRARY` linked for an architecture, whole and without local symbols."""
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles the files that are read here")
    folder = tmp_path_factory.mktemp("twins")
    made: dict[Arch, tuple[Path, Path]] = {}

    def twins_for(arch: Arch) -> tuple[Path, Path]:
        if arch not in made:
            source = folder / "library.c"
            source.write_text(LIBRARY)
            unit = compile_object(
                source, folder / f"{arch.value}.o", arch=arch, options=("-O1", *COMPACT_TABLES)
            )
            whole, stripped = folder / f"{arch.value}.dylib", folder / f"{arch.value}.stripped"
            command = [peer_tool("ld64.lld"), "-arch", arch.value, "-dylib"]
            command += ["-platform_version", "macos", "13.0", "13.0"]
            command += ["-undefined", "dynamic_lookup", "-o", str(whole), str(unit)]
            subprocess.run(command, check=True, timeout=60)
            subprocess.run(
                [peer_tool("llvm-strip"), "-x", str(whole), "-o", str(stripped)],
                check=True,
                timeout=60,
            )
            made[arch] = (whole, stripped)
        return made[arch]

    return twins_for
