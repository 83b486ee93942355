"""The order in which the sources of an image are queried, as seen in real programs."""

import pytest

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.arch import Arch
from machtrace.targets.emulator import PROGRAM
from machtrace.unwinder.sources.of_elf import elf_rules
from machtrace.unwinder.sources.of_macho import macho_rules
from tests.support.compilers.executables import compile_elf


def names(rules):
    return [type(source).__name__ for source in rules.sources]


def test_macho_sources():
    """The demo has neither signal frames nor stubs."""
    contents = MachOFileContents(PROGRAM.read_bytes(), PROGRAM.name)

    assert names(macho_rules(contents, Arch.ARM64)) == [
        "UndefinedReturnAddressRules",
        "AsyncEntryRules",  # instruction analysis of interrupted frames
        "CompactRules",
        "CallFrameRules",
        "CallSiteRules",
    ]


@pytest.mark.peer
def test_elf_sources(tmp_path):
    source = tmp_path / "program.c"
    source.write_text("int main(void) { return 0; }\n")
    program = compile_elf(
        [source], tmp_path / "program", target="x86_64-linux-musl", options=["-shared"]
    )

    assert names(elf_rules(ElfFileContents(program.read_bytes(), "program"), Arch.X86_64)) == [
        "LinuxSignalRules",
        "CallFrameCorrections",
        "CallFrameRules",
        "StartRoutineRules",
        "LazyAnalysis",
        "CallSiteRules",
    ]
