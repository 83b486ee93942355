"""A build that lacks something fails, and names what to install."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
"""The folders of the build's tools, which are installed beside the interpreter."""


def _configure(folder, *arguments, **variables):
    """Configure the build in a folder; return the exit status and the error output, on one line."""
    cmake, ninja = (shutil.which(tool, path=TOOLS) for tool in ("cmake", "ninja"))
    if cmake is None or ninja is None:
        pytest.skip("cmake or ninja is not installed")
    done = subprocess.run(
        [
            cmake,
            "-S",
            ROOT,
            "-B",
            folder,
            "-G",
            "Ninja",
            f"-DCMAKE_MAKE_PROGRAM={ninja}",
            *arguments,
        ],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, " ".join(done.stderr.split())


@pytest.mark.peer
def test_a_build_without_a_compiler_fails(tmp_path):
    """Nothing is installed without its extensions, as if it were whole."""
    status, message = _configure(tmp_path, CC=str(tmp_path / "no-compiler"))

    assert status != 0
    assert "machtrace is built from C and needs a C compiler" in message
    assert "Install gcc and libc6-dev" in message


@pytest.mark.peer
def test_a_build_without_the_headers_of_python_fails(tmp_path):
    """The interpreter is there, its headers are another package."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")

    status, message = _configure(tmp_path, "-DSKBUILD=2", f"-DPython_INCLUDE_DIR={tmp_path}/none")

    assert status != 0
    assert "machtrace is built from C and needs the headers of Python" in message
    assert "Install python3-dev" in message
