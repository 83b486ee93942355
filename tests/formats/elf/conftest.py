"""ELF files of several machines and shapes, compiled once a session, and peers that read them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.compilers.executables import compile_elf

SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern int other(int);
static __attribute__((noinline)) int hidden(int n) { return n * n + (int)strlen("abc"); }
__attribute__((noinline)) int shown(int n) { return hidden(n) + puts("shown"); }
__asm__(".text\\nlabel_without_type:\\n nop\\n ret\\n");
__asm__(".globl global_label\\nglobal_label:\\n nop\\n ret\\n");
int table[300] = {1, 2, 3};
int zeros[3000];
"""
MAIN = SOURCE + "int main(int n, char **v) { (void)v; if (n > 7) abort(); return shown(n); }"
ALONE = """
int other(int);
static __attribute__((noinline)) int hidden(int n) { return n * n + 3; }
__attribute__((noinline)) int shown(int n) { return hidden(n) + other(n) + other(n + 1); }
int user(int n) { return shown(n) * shown(n + 1); }
int table[300] = {1, 2, 3};
int zeros[3000];
"""
POINTERS = """
extern int shown(int), user(int);
int begin(int n) { int (*called)(int) = n > 3 ? shown : user; return called(n) + shown(n); }
"""

NATIVE = {
    "pie": (MAIN, ("-pie", "-fpie")),
    "fixed": (MAIN, ("-no-pie", "-fno-pie")),
    "bound": (MAIN, ("-Wl,-z,now",)),
    "branch-tracking": (MAIN, ("-fcf-protection", "-Wl,-z,ibtplt")),
    "library": (SOURCE, ("-shared", "-fpic", "-Wl,-soname,libsample.so.1")),
    "gnu-hash": (SOURCE, ("-shared", "-fpic", "-Wl,--hash-style=gnu")),
    "sysv-hash": (SOURCE, ("-shared", "-fpic", "-Wl,--hash-style=sysv")),
}
FOREIGN = {
    "arm64": "aarch64-linux-musl",
    "arm64-big-endian": "aarch64_be-linux-musl",
    "i386": "x86-linux-musl",
    "arm": "thumb-linux-musleabihf",
    "arm-big-endian": "armeb-linux-musleabihf",
    "x86_64": "x86_64-linux-musl",
}
COPIES = {"stripped": "--strip-all", "no-sections": "--strip-sections"}
BRANCH_TRACKING = "arm64-branch-tracking"
FILES = (*NATIVE, *FOREIGN, *COPIES, BRANCH_TRACKING)

Build = Callable[[str], Path]


class Builder:
    """A builder that builds each of ``FILES`` once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, name: str) -> Path:
        """Return the file called ``name``."""
        output = self._folder / name
        if output.exists():
            return output
        if name in COPIES:
            self._copy(COPIES[name], output)
        elif name in NATIVE:
            self._native(name, output)
        elif name in FOREIGN:
            target, options = FOREIGN[name], ("-shared", "-O1", "-Wl,--build-id=sha1")
            compile_elf([self._foreign_source()], output, target=target, options=options)
        else:
            self._branch_tracking(output)
        return output

    def _native(self, name: str, output: Path) -> None:
        if shutil.which("cc") is None:
            pytest.skip("no C compiler")
        text, options = NATIVE[name]
        source = output.with_name(f"{name}.c")
        source.write_text(text)
        compile_elf([source], output, options=("-O1", "-Wl,--build-id", *options))

    def _copy(self, option: str, output: Path) -> None:
        program = shutil.which("llvm-objcopy-19") or shutil.which("llvm-objcopy")
        if program is None:
            pytest.skip("llvm-objcopy is not installed; it takes sections away")
        subprocess.run([program, option, self("library"), output], check=True, timeout=60)

    def _branch_tracking(self, output: Path) -> None:
        """Build a fixed program with pointers to stubs, which must start with a landing."""
        # zig's driver does not have -z force-bti.
        linker = shutil.which("ld.lld-19") or shutil.which("ld.lld")
        if linker is None:
            pytest.skip("ld.lld is not installed; it makes stubs that start with a landing")
        unit, library = output.with_suffix(".o"), self("arm64")
        source = output.with_suffix(".c")
        source.write_text(POINTERS)
        options = ("-c", "-fno-pic", "-O1", "-mbranch-protection=standard")
        compile_elf([source], unit, target=FOREIGN["arm64"], options=options)
        options = ("--build-id", "-z", "force-bti", "-e", "begin", "--allow-shlib-undefined")
        command = [linker, *options, unit, library, "-o", output]
        subprocess.run(command, check=True, timeout=60, capture_output=True)

    def _foreign_source(self) -> Path:
        if find_spec("ziglang") is None:
            pytest.skip("ziglang is not installed; it compiles for other machines")
        source = self._folder / "alone.c"
        source.write_text(ALONE)
        return source


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A function that builds one of ``FILES``."""
    return Builder(tmp_path_factory.mktemp("elf"))


@pytest.fixture(scope="session", params=FILES)
def any_file(request: pytest.FixtureRequest, build: Build) -> Path:
    """Each of the files in turn."""
    return build(request.param)


@pytest.fixture(scope="session")
def peer() -> Callable[..., str]:
    """Run another reader of ELF and return its output; skip if it is not installed."""

    def run(tool: str, *arguments: str | Path) -> str:
        program = shutil.which(f"{tool}-19") or shutil.which(tool)
        if program is None:
            pytest.skip(f"{tool} is not installed; it is the peer here")
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    return run


@pytest.fixture(scope="session")
def llvm(peer: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    """Run llvm-readelf on a file with these options and return its output."""

    def read(path: Path, *options: str) -> dict[str, Any]:
        printed = peer("llvm-readelf", "--elf-output-style=JSON", *options, path)
        found: dict[str, Any] = json.loads(printed)[0]
        return found

    return read
