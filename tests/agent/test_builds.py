"""The agent builds without warnings by other compilers, and its header for other languages."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.build import DARWIN, HOOK_PATH, INCLUDE, LOADED, PROJECT, WARNINGS
from tests.support.compilers.darwin import header_options
from tests.support.compilers.executables import run_zig

pytestmark = pytest.mark.peer

HEADER = PROJECT / "agent" / "include" / "machtrace.h"


@pytest.mark.parametrize("target", ["x86_64-linux-gnu.2.28", "aarch64-linux-gnu.2.28"])
def test_clang_has_no_warnings(tmp_path: Path, target: str) -> None:
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("no ziglang")
    clang = [sys.executable, "-m", "ziglang", "cc", "-target", target]
    for source in LOADED:
        options = ["-O2", "-std=c11", "-fPIC", "-fvisibility=hidden", *WARNINGS, *INCLUDE]
        if source in HOOK_PATH:
            options.append("-mgeneral-regs-only")
        command = [*clang, *options, "-c", str(PROJECT / source), "-o", str(tmp_path / "out.o")]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), source


@pytest.mark.parametrize(
    "target",
    [
        *("arm64-apple-macos13.0", "arm64e-apple-macos13.0", "x86_64-apple-macos13.0"),
        *("arm64-apple-ios13.0", "x86_64-apple-ios13.0-simulator"),
    ],
)
def test_apple_s_headers_have_no_warnings(tmp_path: Path, target: str) -> None:
    pytest.importorskip("ziglang", reason="ziglang carries Apple's headers")
    options = ["-O2", "-std=c11", "-fvisibility=hidden", *WARNINGS, *INCLUDE, *header_options()]
    if target.startswith("arm64e"):
        options += ["-fptrauth-returns", "-fptrauth-calls"]
    sources = [str(PROJECT / source) for source in DARWIN]
    try:
        run_zig("clang", ["-target", target, *options, "-c", *sources], tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.fail(error.stderr)


def exported() -> list[str]:
    return [
        line.split("(")[0].split()[-1].lstrip("*")
        for line in HEADER.read_text().splitlines()
        if line.startswith("MACHTRACE_EXPORT")
    ]


def test_the_documented_command_builds_a_library_with_the_header_s_functions(
    tmp_path: Path,
) -> None:
    if shutil.which("cc") is None or not sys.platform.startswith("linux"):
        pytest.skip("no C compiler for Linux")
    text = (PROJECT / "docs" / "agent.md").read_text()
    command = text.split("```sh\n")[1].split("```")[0]
    output = tmp_path / "libmachtrace.so"
    command = command.replace("-o libmachtrace.so", f"-o {output} -Werror")
    subprocess.run(["sh", "-c", command], check=True, cwd=PROJECT)
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(output)], check=True, capture_output=True, text=True
    ).stdout
    assert sorted(line.split()[-1] for line in listing.splitlines()) == sorted(exported())
    assert output.stat().st_size < 150_000


@pytest.mark.parametrize(
    ("compiler", "options"),
    [
        ("cc", ["-std=c89", "-x", "c", "-Wno-long-long"]),
        ("c++", ["-std=c++98", "-x", "c++", "-Wno-long-long", "-Wno-variadic-macros"]),
        ("c++", ["-std=c++17", "-x", "c++"]),
    ],
)
def test_the_header_is_one_of_other_languages(compiler: str, options: list[str]) -> None:
    found = shutil.which(compiler)
    if found is None:
        pytest.skip(f"no {compiler}")
    command = [found, *options, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", str(HEADER)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_function_of_the_header_is_documented() -> None:
    text, names = HEADER.read_text(), exported()
    assert len(names) >= 8
    for name in names:
        assert f"@function {name}\n" in text
