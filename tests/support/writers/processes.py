"""Frozen processes for tests: threads deep in calls between synthetic images, and their cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from struct import Struct

from machtrace.formats.macho.core.writer import core_bytes
from machtrace.formats.macho.header import FileType
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import MemoryRegion, RegionMemory
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import ProcessInfo, Snapshot, ThreadId, ThreadInfo, ThreadSnapshot
from tests.support.writers.synthetic_image import (
    FUNCTION_SIZE,
    TEXT_OFFSET,
    SyntheticImage,
    synthetic_image,
)

PROGRAM_PATH = "/Applications/Synthetic.app/Synthetic"
ADDRESS_BITS = 47

_PROGRAM_AT = 0x1_0468_8000
_LIBRARIES_AT = {Arch.ARM64: 0x1_8A00_0000, Arch.X86_64: 0x7FF8_1000_0000}
_STACKS_AT = {Arch.ARM64: 0x1_6B00_0000, Arch.X86_64: 0x7000_0400_0000}
_STACK_ALIGNMENT = 0x1000
_FRAME_SIZE = 32
"""Bytes that a call of a synthetic function takes on the stack."""
_LOCALS = 16
"""Bytes of a frame below its frame record."""
_SAVED = Struct("<2Q")
"""A frame record: the caller's frame pointer, the return address."""
_RED_ZONE = 128
_ABOVE = 256
"""Bytes above the outermost frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticProcess:
    """A process that never ran, of which everything is known."""

    snapshot: Snapshot
    """Its memory holds every image whole."""
    images: tuple[SyntheticImage, ...]
    """The program first."""
    regions: tuple[MemoryRegion, ...]
    """The memory of :attr:`images`, in their order."""
    stacks: Mapping[ThreadId, tuple[Avma, ...]]
    """The true stack of each thread: its pc, then return addresses, outermost last."""

    def core(self) -> bytes:
        """Return a core that holds all of it."""
        return core_bytes(self.snapshot, self.regions)

    def function_at(self, address: Avma) -> str:
        """Return the linkage name of the function that holds ``address``."""
        for image, region in zip(self.images, self.regions, strict=True):
            number = (address - region.start - TEXT_OFFSET) // FUNCTION_SIZE
            if region.start <= address < region.end and 0 <= number < len(image.functions):
                return image.functions[number]
        raise LookupError(hex(address))


def synthetic_process(
    arch: Arch = Arch.ARM64,
    *,
    threads: int = 3,
    images: int = 4,
    depth: int = 8,
    functions: int = 32,
    signature: int = 0,
    seed: int = 0,
) -> SyntheticProcess:
    """Return a process whose threads have valid stacks with frame pointers.

    Args:
        arch: arm64 or x86_64.
        threads: how many; the first is the main one.
        images: how many, the program included.
        depth: how many addresses each stack has.
        functions: how many each image has.
        signature: what every saved return address has in the bits above its address, as if
            signed; on arm64. Bit 8 must be 0: it selects the half of memory.
        seed: of the choice which functions are on which stack.
    """
    made = [synthetic_image(PROGRAM_PATH, arch, filetype=FileType.EXECUTE, functions=functions)]
    made += [
        synthetic_image(f"/usr/lib/libsynthetic{number}.dylib", arch, functions=functions)
        for number in range(1, images)
    ]
    regions = tuple(_placed(made, arch))
    binary_images = [
        BinaryImage(
            path=image.path,
            uuid=image.uuid,
            arch=arch,
            format=ImageFormat.MACHO,
            load_address=region.start,
            header_svma=image.header_svma,
            size=image.text_size,
        )
        for image, region in zip(made, regions, strict=True)
    ]
    random = Random(seed)  # noqa: S311 (a test's choice)
    stacks: dict[ThreadId, tuple[Avma, ...]] = {}
    copied = []
    at = _STACKS_AT[arch]
    for index in range(1, threads + 1):
        number = ThreadId(0x1A00 + 3 * index)
        places = [(random.randrange(images), random.randrange(functions)) for _ in range(depth)]
        addresses = _addresses(made, regions, places)
        stacks[number] = addresses
        stack, registers = _stack(arch, Avma(at), addresses, signature << ADDRESS_BITS)
        at = stack.end + _STACK_ALIGNMENT
        info = ThreadInfo(
            id=number,
            index=index,
            name=None if index == 1 else f"worker {index}",
            queue="com.apple.main-thread" if index == 1 else None,
            is_main=index == 1,
        )
        copied.append(ThreadSnapshot(info=info, registers=registers, stack=stack))
    mask = PacMask.of_width(ADDRESS_BITS) if arch.is_arm64 else PacMask()
    return SyntheticProcess(
        snapshot=Snapshot(
            process=ProcessInfo(pid=4711, path=PROGRAM_PATH, arch=arch, pointer_mask=mask),
            threads=tuple(copied),
            images=ImageList(binary_images),
            memory=RegionMemory(regions),
        ),
        images=tuple(made),
        regions=regions,
        stacks=stacks,
    )


def _placed(images: Sequence[SyntheticImage], arch: Arch) -> list[MemoryRegion]:
    regions = [MemoryRegion(Avma(_PROGRAM_AT), images[0].data)]
    at = _LIBRARIES_AT[arch]
    for image in images[1:]:
        regions.append(MemoryRegion(Avma(at), image.data))
        at += len(image.data)
    return regions


def _addresses(
    images: Sequence[SyntheticImage],
    regions: Sequence[MemoryRegion],
    places: Sequence[tuple[int, int]],
) -> tuple[Avma, ...]:
    """The pc in the first of ``places`` (image, function), and return addresses in the others."""
    image, function = places[0]
    addresses = [Avma(regions[image].start + images[image].call_of(function))]
    for image, function in places[1:]:
        addresses.append(Avma(regions[image].start + images[image].return_address_of(function)))
    return tuple(addresses)


def _stack(
    arch: Arch, start: Avma, addresses: Sequence[Avma], signature: int
) -> tuple[MemoryRegion, RegisterSet]:
    """The stack whose lowest byte is at ``start``, and the registers of the innermost frame."""
    sp = start + _RED_ZONE
    size = _RED_ZONE + _FRAME_SIZE * len(addresses) + _ABOVE
    data = bytearray(-(-size // _STACK_ALIGNMENT) * _STACK_ALIGNMENT)
    record = sp + _LOCALS
    fp, lr = record, (addresses[1] | signature) if len(addresses) > 1 else 0
    for address in addresses[1:]:
        _SAVED.pack_into(data, record - start, record + _FRAME_SIZE, address | signature)
        record += _FRAME_SIZE
    _SAVED.pack_into(data, record - start, 0, 0)
    registers = RegisterSet.of(
        arch,
        pc=addresses[0],
        sp=sp,
        fp=fp,
        lr=lr,
        general={number: 0x1000 + number for number in range(29 if arch.is_arm64 else 16)},
    )
    return MemoryRegion(start, bytes(data)), registers
