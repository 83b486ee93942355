"""The capture core for Darwin, built once for each architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import machtrace
from machtrace.macho.contents import FileContents
from machtrace.model.arch import Arch

NATIVE = Path(machtrace.__file__).parent / "_native"


@pytest.fixture(scope="session")
def core_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Arch], FileContents]:
    """The core as a library of libSystem's, by architecture; arm64's serves arm64e programs."""
    pytest.importorskip("ziglang", reason="ziglang compiles and links for Darwin")
    pytest.importorskip("unicorn", reason="unicorn runs what was built")
    from machtrace.testing.darwin_library import build_library

    built: dict[Arch, FileContents] = {}

    def library(arch: Arch) -> FileContents:
        wanted = Arch.ARM64 if arch is Arch.ARM64E else arch
        if wanted not in built:
            sources = [*sorted(NATIVE.glob("capture_darwin*.c")), NATIVE / "mach_memory.c"]
            sources.append(Path(__file__).parent / "layout.c")
            output = tmp_path_factory.mktemp(wanted.value) / "core.dylib"
            build_library(sources, output, arch=wanted, includes=[NATIVE])
            built[wanted] = FileContents(output.read_bytes(), output.name)
        return built[wanted]

    return library
