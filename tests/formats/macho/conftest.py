"""Real Mach-O files, compiled once a session, and LLVM's tools as peers that read them too."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

LIBRARY = """
extern int outside(int);
extern int elsewhere(int);
__attribute__((noinline)) static int helper(int x) { return x * 3 + outside(x); }
int g(int);
__attribute__((noinline)) int g(int x) { return helper(x) + elsewhere(2); }
__asm__(".globl _also_g\\n.set _also_g, _g");
int table[4] = {1, 2, 3, 4};
"""
PROGRAM = """
extern int outside(int);
__attribute__((noinline)) int work(int x) { return outside(x) + 1; }
int main(void) { return work(3) * 2; }
"""

Compile = Callable[..., Path]
Llvm = Callable[..., str]


@pytest.fixture(scope="session")
def zig(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compile and (without ``-c`` among the options) link C; return the path of the result."""
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles the files that are read here")
    folder = tmp_path_factory.mktemp("zig")

    def compile_c(name: str, source: str, target: str, *options: str) -> Path:
        code, result = folder / f"{name}.c", folder / name
        code.write_text(source)
        driver = "clang" if "-c" in options else "cc"
        command = [sys.executable, "-m", "ziglang", driver, "-target", target, "-O1", *options]
        if driver == "cc":
            command += ["-nostdlib", "-Wl,-undefined,dynamic_lookup", "-fno-sanitize=undefined"]
        subprocess.run([*command, code, "-o", result], check=True, timeout=240)
        return result

    return compile_c


@pytest.fixture(scope="session")
def llvm() -> Llvm:
    """Run one of LLVM's tools and return its output; skip if it is not installed."""

    def run(tool: str, *arguments: str | Path) -> str:
        program = shutil.which(f"{tool}-19") or shutil.which(tool)
        if program is None:
            pytest.skip(f"{tool} is not installed; it is the peer here")
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout

    return run


@pytest.fixture(scope="session")
def lld(zig: Compile, llvm: Llvm, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Link :data:`LIBRARY` by LLVM's linker, which writes function starts and chained fixups."""
    folder = tmp_path_factory.mktemp("lld")

    def link(name: str, arch: str, *options: str, compiler: tuple[str, ...] = ()) -> Path:
        unit = zig(f"{name}.o", LIBRARY, f"{arch}-apple-macos13.0", "-c", *compiler)
        result = folder / name
        llvm(
            "ld64.lld", "-arch", arch, "-platform_version", "macos", "13.0", "14.2", "-dylib",
            "-undefined", "dynamic_lookup", *options, "-o", result, unit,
        )  # fmt: skip
        return result

    return link


@pytest.fixture(scope="session")
def zig_arm64(zig: Compile) -> Path:
    """A library for arm64, linked by zig: it binds lazily."""
    return zig("libarm64.dylib", LIBRARY, "aarch64-macos.13.0", "-shared")


@pytest.fixture(scope="session")
def zig_x86_64(zig: Compile) -> Path:
    """A library for x86_64, linked by zig: it binds lazily."""
    return zig("libx86_64.dylib", LIBRARY, "x86_64-macos.13.0", "-shared")


@pytest.fixture(scope="session")
def zig_program(zig: Compile) -> Path:
    """A program for arm64, linked by zig."""
    return zig("program", PROGRAM, "aarch64-macos.13.0")


@pytest.fixture(scope="session")
def lld_arm64(lld: Callable[..., Path]) -> Path:
    """A library for arm64, linked by lld."""
    return lld("lld_arm64.dylib", "arm64", "-rpath", "@loader_path/../Frameworks")


@pytest.fixture(scope="session")
def lld_x86_64(lld: Callable[..., Path]) -> Path:
    """A library for x86_64, linked by lld, with opcodes in place of chained fixups."""
    return lld("lld_x86_64.dylib", "x86_64", "-no_fixup_chains")


@pytest.fixture(scope="session")
def i386_object(zig: Compile) -> Path:
    """An object file of 32-bit addresses."""
    return zig("i386.o", LIBRARY, "i386-apple-macos10.12", "-c")


@pytest.fixture(scope="session")
def armv7_object(zig: Compile) -> Path:
    """An object file with Thumb functions."""
    return zig("armv7.o", LIBRARY, "armv7-apple-ios9.0", "-c", "-mthumb")


@pytest.fixture(scope="session")
def arm64_32_object(zig: Compile) -> Path:
    """An object file for a watch: 32-bit addresses, 64-bit registers."""
    return zig("arm64_32.o", LIBRARY, "arm64_32-apple-watchos7", "-c")


FILES = (
    "zig_arm64",
    "zig_x86_64",
    "zig_program",
    "lld_arm64",
    "lld_x86_64",
    "i386_object",
    "armv7_object",
    "arm64_32_object",
)


@pytest.fixture(params=FILES)
def any_file(request: pytest.FixtureRequest) -> Path:
    """Each of the compiled files in turn."""
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=FILES[:5])
def linked_file(request: pytest.FixtureRequest) -> Path:
    """Each of the linked files in turn."""
    found: Path = request.getfixturevalue(request.param)
    return found
