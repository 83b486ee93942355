"""Real programs for the tests of unwinding, each built once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.arch import Arch
from tests.support.compilers.executables import COMPACT_TABLES, compile_macho
from tests.support.lab.builds import build_program

LAB = Path(__file__).parents[1] / "lab" / "programs"

Build = Callable[..., MachOFileContents]


@pytest.fixture(scope="session")
def lab_program(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """``(name, optimisation, tables, arch)`` → one of the lab's programs."""

    @cache
    def build(
        name: str, optimisation: str, tables: str = "compact", arch: Arch = Arch.ARM64
    ) -> MachOFileContents:
        output = tmp_path_factory.mktemp("lab") / name
        return build_program(LAB, name, output, optimisation=optimisation, tables=tables, arch=arch)

    return build


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """``(source text, *options, arch=…, link_options=…)`` → the program, with compact tables."""

    def build(
        text: str, *options: str, arch: Arch = Arch.ARM64, link_options: tuple[str, ...] = ()
    ) -> MachOFileContents:
        directory = tmp_path_factory.mktemp("compiled")
        source = directory / "program.c"
        source.write_text(text)
        output = compile_macho(
            [source],
            directory / "program",
            arch=arch,
            options=(*COMPACT_TABLES, *options),
            link_options=link_options,
        )
        return MachOFileContents(output.read_bytes(), "program")

    return build
