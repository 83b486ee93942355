"""Cores for every test here, and lldb as the peer that also reads and writes them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from machtrace.model.arch import Arch
from machtrace.targets.core.macho import CorefileTarget
from tests.support.writers.processes import SyntheticProcess, synthetic_process

Lldb = Callable[..., str]
HeaderCheck = Callable[[str, str], str]


@pytest.fixture(scope="session", params=[Arch.ARM64, Arch.X86_64], ids=lambda arch: arch.value)
def process(request: pytest.FixtureRequest) -> SyntheticProcess:
    """A small process with known contents."""
    return synthetic_process(request.param, threads=4, images=5, depth=12)


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[bytes], CorefileTarget]:
    """Open bytes as a core file."""

    def open_bytes(data: bytes) -> CorefileTarget:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.core"
        path.write_bytes(data)
        return CorefileTarget(path)

    return open_bytes


@pytest.fixture(scope="session")
def lldb() -> Lldb:
    """Run lldb with these commands and return its output."""
    program = next(filter(None, map(shutil.which, ("lldb-19", "lldb"))), None)
    if program is None:
        pytest.skip("lldb is not installed; it is the peer that cores are compared with")

    def run(*commands: str) -> str:
        arguments = [program, "--no-lldbinit", "--batch"]
        for command in commands:
            arguments += ["-o", command]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="session")
def check_headers(tmp_path_factory: pytest.TempPathFactory) -> HeaderCheck:
    """Compile C for a Darwin triple against Apple's headers; return the compiler's errors."""
    ziglang = pytest.importorskip("ziglang", reason="ziglang carries Apple's headers")
    root = Path(ziglang.__file__).parent / "lib"
    folder = tmp_path_factory.mktemp("headers")

    def check(triple: str, code: str) -> str:
        source = folder / f"{triple}.c"
        source.write_text("#include <stddef.h>\n#include <stdint.h>\n" + code)
        includes = (root / "libc" / "include" / "any-darwin-any", root / "include")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "ziglang", "clang", "-target", triple, "-fsyntax-only"),
                *("-nostdinc", "-isystem", includes[0], "-isystem", includes[1], source),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stderr if done.returncode else ""

    return check
