"""The capture core for Darwin, built once for each architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.arch import Arch

NATIVE = Path(__file__).parents[3] / "native"


@pytest.fixture(scope="session")
def core_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Arch], MachOFileContents]:
    """The core as a library of libSystem's, by architecture; arm64's serves arm64e programs."""
    pytest.importorskip("ziglang", reason="ziglang compiles and links for Darwin")
    pytest.importorskip("unicorn", reason="unicorn runs what was built")
    from tests.support.compilers.darwin import build_library

    built: dict[Arch, MachOFileContents] = {}

    def library(arch: Arch) -> MachOFileContents:
        wanted = Arch.ARM64 if arch is Arch.ARM64E else arch
        if wanted not in built:
            sources = [
                *sorted(NATIVE.glob("inprocess/core/darwin/*.c")),
                NATIVE / "common/darwin/memory.c",
            ]
            sources.append(Path(__file__).parent / "layout.c")
            output = tmp_path_factory.mktemp(wanted.value) / "core.dylib"
            build_library(sources, output, arch=wanted, includes=[NATIVE])
            built[wanted] = MachOFileContents(output.read_bytes(), output.name)
        return built[wanted]

    return library
