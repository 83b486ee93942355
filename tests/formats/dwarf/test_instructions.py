"""Every instruction, every operation of expressions, and every width, in assemblers' output."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from machtrace.formats.dwarf.cfi import CallFrames
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.unwinder.sources.cfi import sections_of_elf
from tests.support.peers.cfi_tables import (
    gnu_functions,
    gnu_row,
    llvm_functions,
    llvm_register_names,
    llvm_row,
)

pytestmark = pytest.mark.peer

Build = Callable[..., Path]
Peer = Callable[..., str]


def _frames(path: Path, name: str) -> CallFrames:
    sections = sections_of_elf(ElfFileContents(path.read_bytes(), path.name))
    return CallFrames(next(s.section for s in sections if s.section.source.endswith(name)))


def _check_like_llvm(path: Path, name: str, peer: Peer) -> None:
    frames = _frames(path, name)
    names = llvm_register_names(frames.section.arch)
    option = "--debug-frame" if name == ".debug_frame" else "--eh-frame"
    functions = llvm_functions(peer("llvm-dwarfdump", option, path))
    assert len(functions) == 3
    for theirs in functions:
        ours = frames.rows(frames.function(theirs.offset))
        # Our reader has no name for registers that unwinding does not restore.
        expected = {
            at: text.replace("XMM0=", "reg17=").replace("XMM5+", "reg22+")
            for at, text in theirs.rows.items()
        }
        assert {row.start: llvm_row(row, names) for row in ours} == expected


def test_every_instruction_in_eh_frame(every_instruction: Build, peer: Peer) -> None:
    """As GNU's assembler writes it, with a personality and a language-specific area."""
    _check_like_llvm(every_instruction(), ".eh_frame", peer)


def test_every_instruction_in_debug_frame(every_instruction: Build, peer: Peer) -> None:
    """A signal frame has an S without a z in its augmentation there."""
    path = every_instruction("DEBUG")
    _check_like_llvm(path, ".debug_frame", peer)
    frames = _frames(path, ".debug_frame")
    printed = peer("llvm-dwarfdump", "--debug-frame", path)
    functions = [frames.function(f.offset) for f in llvm_functions(printed)]
    assert [f.common.is_signal_frame for f in functions] == [False, True, False]


def test_the_negative_offset_of_gnu_is_subtracted(every_instruction: Build, peer: Peer) -> None:
    """``DW_CFA_GNU_negative_offset_extended``."""
    path = every_instruction("NEGATIVE")
    frames = _frames(path, ".eh_frame")
    theirs = gnu_functions(peer("readelf", "--debug-dump=frames-interp", path))[0]
    names = (*frames.section.arch.registers.names, "xmm0")
    ours = frames.rows(frames.function(theirs.offset))
    assert "r15=c+16" in theirs.rows[theirs.start + 3]
    assert {row.start: gnu_row(row, names) for row in ours} == theirs.rows


@pytest.mark.parametrize("version", ["3", "4"])
def test_64_bit_dwarf_of_each_version(version: str, tmp_path: Path, peer: Peer) -> None:
    """Lengths, references and CIE marks of 8 bytes; version 4 states the size of addresses."""
    assembler, linker = shutil.which("llvm-mc-19"), shutil.which("ld.lld-19")
    if assembler is None or linker is None:
        pytest.skip("llvm-mc and ld.lld are not installed; no other assembler writes 64-bit DWARF")
    source = Path(__file__).parent / "programs" / "every_instruction.s"
    unit, library = tmp_path / "unit.o", tmp_path / "library.so"
    options = ["-filetype=obj", "-triple=x86_64-linux", "-dwarf64", f"-dwarf-version={version}"]
    options += ["-defsym", "DEBUG=1"]
    subprocess.run([assembler, *options, source, "-o", unit], check=True, timeout=60)
    subprocess.run([linker, "-shared", unit, "-o", library], check=True, timeout=60)
    assert "DWARF64" in peer("llvm-dwarfdump", "--debug-frame", library)
    _check_like_llvm(library, ".debug_frame", peer)
