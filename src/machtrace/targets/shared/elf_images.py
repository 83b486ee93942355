"""The ELF images of a process elsewhere, from facts about its loader, and their headers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.elf.contents import ElfFileContents, ElfMemoryContents
from machtrace.formats.elf.core.images import VDSO, image_of
from machtrace.formats.elf.core.loader_memory import (
    AT_EXECFN,
    AT_PHDR,
    AT_SYSINFO_EHDR,
    LoadedObject,
    loaded_objects,
    read_string,
)
from machtrace.formats.elf.core.notes import auxiliary_values
from machtrace.formats.elf.image import ElfImage
from machtrace.formats.elf.structs import LAYOUTS, MAGIC, ElfLayout
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage
from machtrace.model.memory import MemoryReader
from machtrace.targets.shared.file_mapping import map_file
from machtrace.targets.shared.proc_maps import Mapping

_PAGE = 4096
_AT_ENTRY = 9
_E_ENTRY = 24
"""The offset of ``e_entry`` in ``Elf32_Ehdr`` and ``Elf64_Ehdr``."""
AT_BASE = 7
"""Address of the dynamic loader (``linux/auxvec.h``)."""


@dataclass(frozen=True, slots=True)
class FoundElf:
    """An image, and the headers that it has in memory."""

    image: BinaryImage
    elf: ElfImage


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """A stub's facts about a Linux process's images."""

    arch: Arch
    auxiliary_vector: bytes
    libraries: Sequence[LoadedObject] | None
    """None if the stub has no list."""
    mappings: Sequence[Mapping]
    """Empty if the stub has no list of files."""
    program: str
    """The program's path; empty if unknown."""

    @property
    def layout(self) -> ElfLayout:
        """The ELF layout of the process's word size."""
        return _layout(self.arch)


def find_elf_images(facts: LoaderFacts, memory: MemoryReader) -> tuple[FoundElf, ...]:
    """Find the images, by address; unreadable ones are left out. Raises nothing."""
    images: dict[int, FoundElf] = {}
    for address, path in _candidates(facts, memory).items():
        image = _image_at(memory, Avma(address), path)
        if image is not None and image.elf.arch is facts.arch:
            images[address] = image
    return tuple(images[address] for address in sorted(images))


def program_name(facts: LoaderFacts, memory: MemoryReader) -> str:
    """Return the program's path; as it was started if nothing better is known."""
    values = dict(auxiliary_values(facts.auxiliary_vector, facts.layout))
    if facts.program or not values.get(AT_EXECFN):
        return facts.program
    return read_string(memory, Avma(values[AT_EXECFN]))


def program_headers(vector: bytes, arch: Arch) -> Avma:
    """Return the address of the program headers by the auxiliary vector; 0 if it has none."""
    return Avma(dict(auxiliary_values(vector, _layout(arch))).get(AT_PHDR, 0))


def entry_addresses(vector: bytes, arch: Arch, memory: MemoryReader) -> frozenset[int]:
    """Return the addresses (AVMAs) at which a process begins: the loader's, and the program's.

    Args:
        vector: its auxiliary vector.
        arch: its architecture.
        memory: its memory.
    """
    values = dict(auxiliary_values(vector, _layout(arch)))
    entries = {values.get(_AT_ENTRY, 0)}
    base = values.get(AT_BASE, 0)
    if base:
        try:
            entry = memory.read(Avma(base + _E_ENTRY), arch.pointer_size)
        except MemoryReadError:
            pass
        else:
            entries.add(base + int.from_bytes(entry, "little"))
    return frozenset(entries - {0})


def _layout(arch: Arch) -> ElfLayout:
    return LAYOUTS[2 if arch.pointer_size == 8 else 1, 1]  # noqa: PLR2004 (bytes)


def _candidates(facts: LoaderFacts, memory: MemoryReader) -> dict[int, str]:
    """Return paths by the addresses where images may begin."""
    paths: dict[int, str] = {}
    values = dict(auxiliary_values(facts.auxiliary_vector, facts.layout))
    program = program_name(facts, memory)
    if values.get(AT_PHDR):
        paths[values[AT_PHDR] // _PAGE * _PAGE] = program
    if values.get(AT_SYSINFO_EHDR):
        paths[values[AT_SYSINFO_EHDR]] = VDSO
    if values.get(AT_BASE):
        paths[values[AT_BASE]] = ""
    inodes = {one.inode for one in facts.mappings if one.is_executable}
    for mapping in facts.mappings:
        if mapping.is_file and mapping.offset == 0 and mapping.inode in inodes:
            paths[mapping.start] = mapping.path
    if facts.mappings:
        return paths
    libraries = facts.libraries
    if libraries is None:
        libraries = loaded_objects(memory, facts.auxiliary_vector, facts.layout)
    for library in libraries:
        if library.bias and not paths.get(library.bias):
            # A library is linked at 0, so that its bias is its load address.
            paths[library.bias] = library.name
    return paths


def _image_at(memory: MemoryReader, address: Avma, path: str) -> FoundElf | None:
    try:
        if bytes(memory.read(address, len(MAGIC))) != MAGIC:
            return None
        elf = ElfMemoryContents(memory, address, path or f"image at {address:#x}").image
    except (FormatError, MemoryReadError):
        return None
    return FoundElf(image_of(elf, path or elf.soname or "", address), elf)


def with_local_file(elf: FoundElf, memory: MemoryReader) -> FoundElf:
    """Set the image's file on this machine, if its path leads to it.

    It is recognised by its build-id; without one, by its first page.
    """
    path = elf.image.path
    data = map_file(path) if path.startswith("/") else None
    if data is None:
        return elf
    try:
        if elf.image.uuid is not None:
            is_same = ElfFileContents(data, path).image.build_id == elf.image.uuid
        else:
            head = min(_PAGE, len(data))
            is_same = head > 0 and memory.read(elf.image.load_address, head) == data[:head]
    except (FormatError, MemoryReadError):
        return elf
    return replace(elf, image=replace(elf.image, local_path=path)) if is_same else elf
