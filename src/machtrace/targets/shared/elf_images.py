"""Which ELF images a stub's process has, by what the stub tells of its loader; their headers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage
from machtrace.model.memory import MemoryReader
from machtrace.targets.shared.file_mapping import map_file
from machtrace.targets.shared.proc_maps import Mapping

_PAGE = 4096
AT_BASE = 7
"""Where the kernel loaded the loader (``linux/auxvec.h``)."""


@dataclass(frozen=True, slots=True)
class FoundElf:
    """An image, and the headers that it has in memory."""

    image: BinaryImage
    elf: ElfImage


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """What a stub tells of a Linux process' images."""

    arch: Arch
    auxiliary_vector: bytes
    libraries: Sequence[LoadedObject] | None
    """None where the stub has no list."""
    mappings: Sequence[Mapping]
    """None where it has no files."""
    program: str
    """Path; empty where it does not tell."""

    @property
    def layout(self) -> ElfLayout:
        """Of the process' own width."""
        return _layout(self.arch)


def find_elf_images(facts: LoaderFacts, memory: MemoryReader) -> tuple[FoundElf, ...]:
    """The images, by address. What of them cannot be read is left out; raises nothing."""
    found: dict[int, FoundElf] = {}
    for address, path in _candidates(facts, memory).items():
        one = _image_at(memory, Avma(address), path)
        if one is not None and one.elf.arch is facts.arch:
            found[address] = one
    return tuple(found[address] for address in sorted(found))


def program_name(facts: LoaderFacts, memory: MemoryReader) -> str:
    """The path of the program; as it was started where nothing better is known."""
    values = dict(auxiliary_values(facts.auxiliary_vector, facts.layout))
    if facts.program or not values.get(AT_EXECFN):
        return facts.program
    return read_string(memory, Avma(values[AT_EXECFN]))


def program_headers(vector: bytes, arch: Arch) -> Avma:
    """Where the auxiliary vector says that the program's headers are; 0 where it does not."""
    return Avma(dict(auxiliary_values(vector, _layout(arch))).get(AT_PHDR, 0))


def _layout(arch: Arch) -> ElfLayout:
    return LAYOUTS[2 if arch.pointer_size == 8 else 1, 1]  # noqa: PLR2004 (bytes)


def _candidates(facts: LoaderFacts, memory: MemoryReader) -> dict[int, str]:
    """Paths by where images may begin."""
    places: dict[int, str] = {}
    values = dict(auxiliary_values(facts.auxiliary_vector, facts.layout))
    program = program_name(facts, memory)
    if values.get(AT_PHDR):
        places[values[AT_PHDR] // _PAGE * _PAGE] = program
    if values.get(AT_SYSINFO_EHDR):
        places[values[AT_SYSINFO_EHDR]] = VDSO
    if values.get(AT_BASE):
        places[values[AT_BASE]] = ""
    inodes = {one.inode for one in facts.mappings if one.is_executable}
    for mapping in facts.mappings:
        if mapping.is_file and mapping.offset == 0 and mapping.inode in inodes:
            places[mapping.start] = mapping.path
    if facts.mappings:
        return places
    libraries = facts.libraries
    if libraries is None:
        libraries = loaded_objects(memory, facts.auxiliary_vector, facts.layout)
    for library in libraries:
        if library.bias and not places.get(library.bias):
            # A library is linked at 0, so that its bias is its load address.
            places[library.bias] = library.name
    return places


def _image_at(memory: MemoryReader, address: Avma, path: str) -> FoundElf | None:
    try:
        if bytes(memory.read(address, len(MAGIC))) != MAGIC:
            return None
        elf = ElfMemoryContents(memory, address, path or f"image at {address:#x}").image
    except (FormatError, MemoryReadError):
        return None
    return FoundElf(image_of(elf, path or elf.soname or "", address), elf)


def with_local_file(found: FoundElf, memory: MemoryReader) -> FoundElf:
    """``found`` with the file of this machine that is the very image, if its path leads there.

    It is known by its build-id; where there is none, by the page that it starts with.
    """
    path = found.image.path
    data = map_file(path) if path.startswith("/") else None
    if data is None:
        return found
    try:
        if found.image.uuid is not None:
            is_same = ElfFileContents(data, path).image.build_id == found.image.uuid
        else:
            head = min(_PAGE, len(data))
            is_same = head > 0 and memory.read(found.image.load_address, head) == data[:head]
    except (FormatError, MemoryReadError):
        return found
    return replace(found, image=replace(found.image, local_path=path)) if is_same else found
