"""The Darwin sources, compiled against Apple's headers for each supported system.

Their behaviour is tested in an emulator (``tests/emulated/darwin``), and on Macs where available.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[3] / "native"
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wstrict-prototypes"]
WARNINGS += ["-Wmissing-prototypes", "-Wvla", "-Werror"]
SOURCES = sorted(
    path
    for folder in ("inprocess/core/darwin", "common/darwin", "darwin_task")
    for path in (NATIVE / folder).glob("*.c")
    if path.name != "module.c"  # it binds to Python
)
MAGIC_64 = 0xFEEDFACF


@pytest.mark.peer
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
def test_sources_compile_and_their_assertions_hold(triple: str, tmp_path: Path) -> None:
    """The sources assert sizes and offsets of the kernel's structures."""
    ziglang = pytest.importorskip("ziglang", reason="ziglang carries Apple's headers")
    root = Path(ziglang.__file__).parent / "lib"
    headers = [str(root / "include"), str(root / "libc/include/any-darwin-any")]
    command = [sys.executable, "-m", "ziglang", "clang", "-target", triple, "-std=c11", "-O2"]
    command += [*WARNINGS, *(f"-isystem{header}" for header in headers), f"-I{NATIVE}"]
    for source in SOURCES:
        target = tmp_path / f"{source.parent.name}-{source.stem}.o"
        completed = subprocess.run(
            [*command, "-c", str(source), "-o", str(target)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert completed.stderr == ""
        assert completed.returncode == 0
        assert int.from_bytes(target.read_bytes()[:4], "little") == MAGIC_64


def test_the_core_does_not_include_python() -> None:
    """The same files can be built into programs without it."""
    core = [*(NATIVE / "inprocess/core").rglob("*.[ch]"), *SOURCES]
    core += [
        path for system in ("darwin", "linux") for path in (NATIVE / "common" / system).iterdir()
    ]
    names = {path.relative_to(NATIVE).as_posix() for path in core}
    assert {
        "inprocess/core/capture.h",
        "inprocess/core/linux/capture.c",
        "inprocess/core/darwin/capture.c",
    } <= names
    for path in core:
        assert "Python.h" not in path.read_text(encoding="utf-8")
