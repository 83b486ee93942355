"""The kind of a file, and the images in it."""

from __future__ import annotations

import sys
from pathlib import Path
from uuid import UUID

import pytest

from machtrace.errors import FormatError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.object_file import (
    Signature,
    in_memory,
    linked_image,
    signature,
    sniff,
)
from machtrace.model.address import Avma
from machtrace.model.image import ImageFormat
from machtrace.model.memory import MemoryRegion, RegionMemory
from machtrace.model.symbol import FrameStatus
from tests.support.writers.macho import ThinFile
from tests.support.writers.symbol_files import APP, INTEL_APP, fat

VMADDR = 0x1_0000_0000
LINKED = ThinFile(uuid=UUID(int=7), vmaddr=VMADDR).build()
JAVA_CLASS = bytes.fromhex("cafebabe 0000 0041")


@pytest.fixture
def elf() -> bytes:
    """Python's own executable."""
    data = Path(sys.executable).read_bytes()
    if signature(data) is not Signature.ELF:
        pytest.skip("this system's programs are not ELF")
    return data


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (b"\x7fELF\x02\x01\x01\x00", Signature.ELF),
        (bytes.fromhex("cffaedfe 0c000001"), Signature.MACHO),
        (bytes.fromhex("feedface 00000012"), Signature.MACHO),
        (bytes.fromhex("cafebabe 00000002"), Signature.FAT_MACHO),
        (bytes.fromhex("cafebabf 00000001"), Signature.FAT_MACHO),
        (b"!<arch>\n", Signature.STATIC_LIBRARY),
        (b"!<thin>\n", Signature.STATIC_LIBRARY),
        (JAVA_CLASS, None),
        (b"PK\x03\x04\x14\x00\x00\x00", None),
        (b"\x7fEL", None),
        (b"", None),
    ],
)
def test_the_first_bytes_decide(start: bytes, expected: Signature | None) -> None:
    assert signature(start) is expected
    assert signature(memoryview(start)) is expected


def test_an_elf_file_is_one_image(elf: bytes) -> None:
    (part,) = sniff(elf, "libc")
    contents = part.open()
    assert isinstance(contents, ElfFileContents)
    assert part.format is contents.format is ImageFormat.ELF
    assert part.arch_name == contents.image.arch.value
    assert part.fat is None


def test_each_slice_of_a_fat_file_is_an_image() -> None:
    parts = sniff(fat(APP, INTEL_APP), "fat")
    assert [part.arch_name for part in parts] == ["arm64", "x86_64"]
    assert [bytes(part.data) for part in parts] == [APP, INTEL_APP]
    assert all(isinstance(part.open(), MachOFileContents) for part in parts)


def test_a_malformed_slice_does_not_affect_the_others() -> None:
    bad = bytearray(APP)
    bad[20:24] = b"\xff" * 4  # sizeofcmds
    first, second = sniff(fat(bytes(bad), INTEL_APP), "fat")
    with pytest.raises(FormatError, match="header"):
        first.open()
    assert second.open().image.header.arch_name == "x86_64"


@pytest.mark.parametrize("data", [b"", b"\x7fELF", JAVA_CLASS, b"!<arch>\n", b"text" * 10])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        sniff(data, "other")


def test_an_image_in_a_file_has_its_linked_address() -> None:
    contents = MachOFileContents(LINKED, "/lib/X")
    image = linked_image(contents, path="/System/X")
    assert (image.path, image.local_path) == ("/System/X", "/lib/X")
    assert image.load_address == image.header_svma == VMADDR
    assert image.uuid == contents.image.identifier == UUID(int=7)
    assert image.size == contents.image.size > 0
    assert image.slide == contents.slide == 0


def test_a_loaded_image_is_read_at_its_load_address() -> None:
    image = linked_image(MachOFileContents(LINKED, "X"))
    memory = RegionMemory([MemoryRegion(Avma(VMADDR), LINKED)])
    loaded = in_memory(image, memory)
    assert not isinstance(loaded, FrameStatus)
    assert loaded.is_loaded
    assert loaded.image.identifier == UUID(int=7)


def test_unreadable_memory_has_a_status() -> None:
    image = linked_image(MachOFileContents(LINKED, "X"))
    nothing = RegionMemory([])
    zeros = RegionMemory([MemoryRegion(Avma(VMADDR), bytes(len(LINKED)))])
    assert in_memory(image, nothing) is FrameStatus.MISSING_FILE
    assert in_memory(image, zeros) is FrameStatus.MALFORMED_FILE
