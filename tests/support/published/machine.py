"""The emulator of one image: memory that is mapped on demand, and restored between runs."""

from __future__ import annotations

from random import Random

import numpy as np
from unicorn import arm64_const, x86_const
from unicorn.unicorn_const import (
    UC_HOOK_MEM_READ_UNMAPPED,
    UC_HOOK_MEM_WRITE_UNMAPPED,
    UC_PROT_EXEC,
    UC_PROT_READ,
    UC_PROT_WRITE,
)

# What ``unicorn`` names the same: type checkers see the classes for Python 2 there.
from unicorn.unicorn_py3.unicorn import Uc, UcError

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion
from tests.support.emulated.cpu import EmulatedCpu, emulated_cpu
from tests.support.published.image import ANY_IMPORT, IMPORT_SIZE, IMPORTS, PublishedImage

OUTSIDE = Avma(0x40_0000_0000)
"""The return address of the outermost frame; in no image."""
STACK = range(0x70_0000_0000, 0x70_0010_0000)
SCRATCH = range(0x60_0000_0000, 0x60_0010_0000)
RED_ZONE = 256
_THREAD_DATA = SCRATCH.start + 0x8000
_PAGE = 0x1000
_MAX_PAGES_OF_RUN = 64
_MAX_PAGES = 512
_LOWEST_ADDRESS_BITS = 40
_SCTLR_EL1 = (1, 0, 3, 0, 0)
_OTHER_KEYS = 1 << 31 | 1 << 27 | 1 << 13
"""EnIA, EnDA and EnDB: pointers in tables are not signed here; return addresses are, by IB."""


class Machine:
    """A CPU with an image, a stack, and memory that random pointers lead to.

    What a page holds depends on the seed and its address alone, so that runs cannot affect one
    another.
    """

    def __init__(self, image: PublishedImage, seed: str) -> None:
        self.image = image
        self.cpu: EmulatedCpu = emulated_cpu(image.arch)
        self.uc: Uc = self.cpu.uc
        self.dirty: set[int] = set()
        """Numbers of pages that were written since :meth:`restore`."""
        self._mapped: list[int] = []
        self._mapped_before = 0
        self._words = _filler(Random(f"{seed}/memory"), image)
        self._originals: dict[int, bytes] = {}
        for segment in image.segments:
            self._map_segment(segment.address, segment.data, segment.is_executable)
        self._map_filled(STACK)
        self._map_filled(SCRATCH)
        self._map_imports()
        self.uc.mem_map(OUTSIDE, _PAGE)
        self._set_thread_registers()
        self.uc.hook_add(UC_HOOK_MEM_READ_UNMAPPED | UC_HOOK_MEM_WRITE_UNMAPPED, self._map_page)
        self._fresh = self.uc.context_save()

    def _map_segment(self, address: int, data: bytearray, is_executable: bool) -> None:  # noqa: FBT001
        low = address & -_PAGE
        high = -(-(address + len(data)) // _PAGE) * _PAGE
        rights = UC_PROT_READ | (UC_PROT_EXEC if is_executable else UC_PROT_WRITE)
        self.uc.mem_map(low, high - low, rights)
        self.uc.mem_write(address, bytes(data))

    def _map_filled(self, memory: range) -> None:
        self.uc.mem_map(memory.start, len(memory), UC_PROT_READ | UC_PROT_WRITE)
        for page in range(memory.start, memory.stop, _PAGE):
            self.uc.mem_write(page, self._filled(page))

    def _map_imports(self) -> None:
        """Let symbols of other images hold pointers to functions there."""
        size = -(-IMPORT_SIZE * (len(self.image.import_names) + 2) // _PAGE) * _PAGE
        self.uc.mem_map(IMPORTS, size, UC_PROT_READ | UC_PROT_WRITE)
        self.uc.mem_write(IMPORTS, ANY_IMPORT.to_bytes(8, "little") * (size // 8))

    def _set_thread_registers(self) -> None:
        if self.image.arch.is_arm64:
            self.uc.reg_write(arm64_const.UC_ARM64_REG_TPIDR_EL0, _THREAD_DATA)
            self.uc.reg_write(arm64_const.UC_ARM64_REG_TPIDRRO_EL0, _THREAD_DATA)
            control = self.uc.reg_read(arm64_const.UC_ARM64_REG_CP_REG, _SCTLR_EL1)
            value = (*_SCTLR_EL1, control & ~_OTHER_KEYS)
            self.uc.reg_write(arm64_const.UC_ARM64_REG_CP_REG, value)
        else:
            self.uc.reg_write(x86_const.UC_X86_REG_FS_BASE, _THREAD_DATA)
            self.uc.reg_write(x86_const.UC_X86_REG_GS_BASE, _THREAD_DATA)

    # --- memory ---

    def restore(self) -> None:
        """Restore the memory and the registers that runs begin with."""
        for number in self.dirty:
            page = number * _PAGE
            try:
                self.uc.mem_write(page, self._original(page))
            except UcError:
                continue  # a write that was refused
        self.dirty.clear()
        if len(self._mapped) > _MAX_PAGES:
            for page in self._mapped:
                self.uc.mem_unmap(page, _PAGE)
            self._mapped.clear()
        self._mapped_before = len(self._mapped)
        self.uc.context_restore(self._fresh)

    def _original(self, page: int) -> bytes:
        original = self._originals.get(page)
        if original is None:
            original = self._originals[page] = self._loaded(page)
        return original

    def _loaded(self, page: int) -> bytes:
        if IMPORTS <= page < IMPORTS + (1 << 36):
            return ANY_IMPORT.to_bytes(8, "little") * (_PAGE // 8)
        if page == OUTSIDE:
            return bytes(_PAGE)
        loaded = self.image.bytes_at(page, _PAGE)
        if loaded:
            return loaded.ljust(_PAGE, b"\0")
        return self._filled(page)

    def _filled(self, page: int) -> bytes:
        start = (page >> 12) * 0x9E3779B1 % (len(self._words) - _PAGE) & -8
        return self._words[start : start + _PAGE]

    def _map_page(
        self, uc: Uc, access: int, address: int, size: int, value: int, _: object
    ) -> bool:
        del access, value
        if address >> _LOWEST_ADDRESS_BITS:
            return False
        if len(self._mapped) - self._mapped_before >= _MAX_PAGES_OF_RUN:
            return False
        for page in {address & -_PAGE, (address + size - 1) & -_PAGE}:
            try:
                uc.mem_map(page, _PAGE, UC_PROT_READ | UC_PROT_WRITE)
            except UcError:
                continue  # the other page of an access across two
            uc.mem_write(page, self._filled(page))
            self._mapped.append(page)
        return True

    def read(self, address: Avma, size: int, /) -> bytes:
        """See :meth:`machtrace.model.memory.MemoryReader.read`."""
        try:
            return bytes(self.uc.mem_read(address, size))
        except (UcError, OverflowError, ValueError):
            raise MemoryReadError(address, size) from None

    def word(self, address: int) -> int | None:
        """Return the word at ``address``; None if it is unreadable."""
        try:
            return int.from_bytes(self.uc.mem_read(address, 8), "little")
        except (UcError, OverflowError, ValueError):
            return None

    def stack(self, sp: int) -> MemoryRegion:
        """Return a copy of the stack from below ``sp`` to its end."""
        low = max(STACK.start, min((sp - RED_ZONE) & -16, STACK.stop - _PAGE))
        return MemoryRegion(Avma(low), bytes(self.uc.mem_read(low, STACK.stop - low)))


class Values:
    """Random values that registers of running programs plausibly have."""

    def __init__(self, image: PublishedImage) -> None:
        self._image = image
        self._data = [segment for segment in image.segments if not segment.is_executable]

    def draw(self, random: Random) -> int:
        """Return a pointer with good odds to what it may lead to, or a number."""
        kind = random.random()
        if kind < 0.7:
            return SCRATCH.start + random.randrange(len(SCRATCH) - 0x4000) // 16 * 16
        if kind < 0.85:
            return random.choice((0, 0, 1, 1, 2, 3, 4, 5, 7, 8, 12, 16, 31, 64, 200))
        if kind < 0.89:
            return ANY_IMPORT
        if kind < 0.94 and self._data:
            segment = random.choice(self._data)
            return segment.address + random.randrange(max(1, len(segment.data))) // 8 * 8
        if kind < 0.97:
            return int(self._image.starts[random.randrange(len(self._image.starts))])
        return random.getrandbits(random.choice((8, 16, 16, 32, 32, 64)))


def _filler(random: Random, image: PublishedImage, size: int = 1 << 18) -> bytes:
    """Return words that most memory holds: pointers to such memory, numbers, code pointers."""
    generator = np.random.default_rng(random.getrandbits(64))
    count = size // 8
    kinds = generator.random(count)
    pointers = SCRATCH.start + generator.integers(0, len(SCRATCH) - 0x4000, count) // 16 * 16
    numbers = generator.integers(0, 64, count) | generator.integers(0, 4, count) << 32
    functions = image.starts[generator.integers(0, len(image.starts), count)].astype(np.int64)
    words = np.select(
        [kinds < 0.6, kinds < 0.9, kinds < 0.96, kinds < 0.98],
        [pointers, numbers, np.full(count, ANY_IMPORT), functions],
        generator.integers(-(1 << 63), (1 << 63) - 1, count),
    )
    return words.astype("<i8").tobytes()
