"""The Darwin sources, against Apple's headers, for each system that they are for.

What they do is tested in an emulator (``tests/darwin``), and on Macs where there are any.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[3] / "native"
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wstrict-prototypes"]
WARNINGS += ["-Wmissing-prototypes", "-Wvla", "-Werror"]
SOURCES = sorted([*NATIVE.glob("*darwin*.c"), *NATIVE.glob("mach_*.c")])
MAGIC_64 = 0xFEEDFACF


@pytest.mark.parametrize(
    "triple",
    [
        "aarch64-apple-macos13.0",
        "x86_64-apple-macos13.0",
        "arm64-apple-ios15.0",
        "arm64e-apple-ios15.0",
        "arm64-apple-ios15.0-simulator",
        "x86_64-apple-ios15.0-simulator",
    ],
)
def test_they_compile_and_their_assertions_hold(triple: str, tmp_path: Path) -> None:
    """Sizes and places of the kernel's structures are asserted in the sources themselves."""
    ziglang = pytest.importorskip("ziglang", reason="ziglang carries Apple's headers")
    root = Path(ziglang.__file__).parent / "lib"
    headers = [str(root / "include"), str(root / "libc/include/any-darwin-any")]
    command = [sys.executable, "-m", "ziglang", "clang", "-target", triple, "-std=c11", "-O2"]
    command += [*WARNINGS, *(f"-isystem{one}" for one in headers), f"-I{NATIVE}"]
    done = subprocess.run(
        [*command, "-c", *map(str, SOURCES)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    for source in SOURCES:
        made = (tmp_path / source.name).with_suffix(".o").read_bytes()
        assert int.from_bytes(made[:4], "little") == MAGIC_64


def test_nothing_of_python_is_in_the_core() -> None:
    """The same files are to be built into programs without it."""
    core = [*NATIVE.glob("capture*.[ch]"), NATIVE / "own_registers.h", *SOURCES]
    core += [*NATIVE.glob("mach_*.h"), NATIVE / "darwin_registers.h", NATIVE / "task_ports.h"]
    assert {"capture.h", "capture_linux.c", "capture_darwin.c"} <= {path.name for path in core}
    for path in core:
        assert "Python.h" not in path.read_text(encoding="utf-8")
