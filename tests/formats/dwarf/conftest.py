"""Files with call-frame information: of this machine, and compiled once a session for others."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.compilers.executables import compile_elf

PROGRAMS = Path(__file__).parent / "programs"
NO_FRAME_POINTER = ("-O2", "-fomit-frame-pointer")

Peer = Callable[..., str]


@pytest.fixture(scope="session")
def peer() -> Peer:
    """Run another reader of ELF and return its output; skip if it is not installed."""

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
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of this machine, without frame pointers."""
    return _native(tmp_path_factory.mktemp("program") / "program")


@pytest.fixture(scope="session")
def debug_frame_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program whose functions are described by ``.debug_frame`` alone."""
    output = tmp_path_factory.mktemp("debug_frame") / "program"
    return _native(output, "-g", "-fno-asynchronous-unwind-tables")


def _native(output: Path, *options: str) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    sources = [PROGRAMS / "frames.c", PROGRAMS / "main.c"]
    return compile_elf(sources, output, options=(*NO_FRAME_POINTER, *options))


@pytest.fixture(scope="session")
def libc() -> Path:
    """The C library of this machine."""
    return _loaded("libc.so.6")


@pytest.fixture(scope="session")
def loader() -> Path:
    """The dynamic loader of this machine."""
    return _loaded("ld-linux-x86-64.so.2")


@pytest.fixture(scope="session")
def libpython() -> Path:
    """The shared library of a Python, this one or the system's."""
    name = sysconfig.get_config_var("INSTSONAME") or ""
    candidates = [Path(sysconfig.get_config_var("LIBDIR") or "/") / name]
    candidates += sorted(Path("/usr/lib").glob("*/libpython3.*.so.1.0"))
    for path in candidates:
        if path.name.startswith("libpython") and ".so" in path.name and path.is_file():
            return path
    pytest.skip("no shared libpython here")


@pytest.fixture(scope="session")
def node() -> Path:
    """Node.js: a large program at a fixed address, with hand-written unwind information."""
    path = shutil.which("node")
    if path is None:
        pytest.skip("node is not installed")
    return Path(path).resolve()


def _loaded(name: str) -> Path:
    maps = Path("/proc/self/maps")
    if maps.exists():
        for line in maps.read_text().splitlines():
            path = Path(line.split()[-1])
            if path.name == name:
                return path
    pytest.skip(f"this process has no {name}")


FOREIGN = {
    "arm64": ("aarch64-linux-musl", ()),
    "arm64-signed": ("aarch64-linux-musl", ("-mbranch-protection=standard",)),
    "arm64-big-endian": ("aarch64_be-linux-musl", ()),
    "i386": ("x86-linux-musl", ()),
    "x86_64-large": ("x86_64-linux-musl", ("-mcmodel=medium",)),
}
"""By name: zig's target, and further options."""


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Build a shared library for another machine, by its name in ``FOREIGN``."""
    folder = tmp_path_factory.mktemp("foreign")

    def build(name: str) -> Path:
        if find_spec("ziglang") is None:
            pytest.skip("ziglang is not installed; it compiles for other machines")
        output = folder / name
        if not output.exists():
            target, options = FOREIGN[name]
            compile_elf(
                [PROGRAMS / "frames.c"],
                output,
                target=target,
                options=("-shared", *NO_FRAME_POINTER, *options),
            )
        return output

    return build


@pytest.fixture(scope="session", params=FOREIGN)
def foreign_library(request: pytest.FixtureRequest, foreign: Callable[[str], Path]) -> Path:
    """Each of the foreign libraries in turn."""
    return foreign(request.param)


@pytest.fixture(scope="session")
def arm_debug_frame(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for 32-bit arm, which has call-frame information only for debuggers."""
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles for other machines")
    output = tmp_path_factory.mktemp("arm") / "arm"
    options = ("-shared", "-g", *NO_FRAME_POINTER)
    return compile_elf(
        [PROGRAMS / "frames.c"], output, target="arm-linux-musleabihf", options=options
    )


@pytest.fixture(scope="session")
def every_instruction(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A library that uses every call-frame instruction; the options are its assembler's symbols."""
    folder = tmp_path_factory.mktemp("instructions")

    def build(*symbols: str) -> Path:
        if shutil.which("cc") is None:
            pytest.skip("no C compiler")
        output = folder / "-".join(("every", *symbols))
        options = ["-shared", "-nostdlib", *(f"-Wa,--defsym,{symbol}=1" for symbol in symbols)]
        source = PROGRAMS / "every_instruction.s"
        try:
            return compile_elf([source], output, options=options)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"the assembler is not one for x86-64: {error.stderr.strip()[-100:]}")

    return build
