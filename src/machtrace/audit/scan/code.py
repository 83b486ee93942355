"""One image's functions, decoded on demand: their calls, and the names that these have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from machtrace.audit.rules import RuleSet
from machtrace.audit.scan.elf_names import ElfNames, code_sections
from machtrace.audit.scan.flow import Names, follow
from machtrace.audit.scan.machines import X86, Arm64, Machine
from machtrace.audit.scan.names import WatchedNames
from machtrace.audit.scan.values import Use
from machtrace.errors import MachtraceError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.macho.columns import Addresses
from machtrace.formats.macho.contents import MachOFileContents, is_encrypted
from machtrace.frozen import dataclass
from machtrace.model.address import ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.symbol import Certainty
from machtrace.symbols.elf import elf_symbol_table
from machtrace.symbols.macho.table import macho_symbol_table
from machtrace.symbols.table import CERTAINTIES, SymbolTable

# --- Where code refers to given addresses, references in bulk ---
#
# The result may have a place too many, never one too few as far as the instruction forms of
# compilers go: :mod:`~machtrace.audit.scan.flow` decodes the functions around the places and
# decides.
#
# On arm64 an address is a branch's target, or a page (ADRP) and the offset within it in a later
# instruction with the same register, or within 1 MiB of the instruction (ADR, LDR literal). On
# x86-64 it is a displacement of 32 bits relative to the instruction's end.

_PAGE_BITS = 12
_DISPLACEMENT = 4
_PIECE = 1 << 16
"""Instructions searched at once."""
_X86_PIECE = 1 << 18
"""Bytes searched at once; a multiple of the size of a displacement."""
_X86_TAILS = (0, 1, 2, 4)
"""Bytes of operands that may follow a displacement."""

Words = npt.NDArray[np.uint32]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class References:
    """Places in code and the addresses that they may refer to; a place may have several."""

    places: Rows
    """Addresses of instructions; on x86-64 of a displacement inside of one."""
    targets: Rows

    @classmethod
    def joined(cls, parts: Sequence[References]) -> References:
        """Put rows together."""
        none = np.zeros(0, np.int64)
        return cls(
            np.concatenate([none, *(part.places for part in parts)]),
            np.concatenate([none, *(part.targets for part in parts)]),
        )

    def only(self, wanted: Addresses) -> References:
        """Return the rows whose target is wanted; ``wanted`` ascends."""
        kept = _in(self.targets, wanted)
        return References(self.places[kept], self.targets[kept])


def arm64_references(code: memoryview, start: int, wanted: Addresses) -> References:
    """Return what may refer to any of ``wanted``.

    Args:
        code: a section's instructions.
        start: its address.
        wanted: ascending.
    """
    words = np.frombuffer(code[: len(code) // 4 * 4], "<u4")
    if not len(words) or not len(wanted):
        return References.joined([])
    search = _Arm64Search(wanted)
    # Pieces whose intermediate columns fit the processor's cache.
    return References.joined(
        [
            part
            for at in range(0, len(words), _PIECE)
            for part in search.piece(words[at : at + _PIECE], start + at * 4)
        ]
    )


def _signed(values: Rows, bits: int) -> Rows:
    return (values ^ (1 << (bits - 1))) - (1 << (bits - 1))


_BRANCH, _ADR, _LITERAL, _REFERENCES_ADRP, _ADD, _LOAD, _MOVE = range(1, 8)


def _kinds() -> bytes:
    """Return the kind of instructions by their highest byte; ADD, LDR and MOV need a closer look.

    The kinds from _REFERENCES_ADRP on set a register.
    """
    kinds = np.zeros(256, np.uint8)
    kinds[[0x14, 0x15, 0x16, 0x17, 0x94, 0x95, 0x96, 0x97]] = _BRANCH
    kinds[[0x10, 0x30, 0x50, 0x70]] = _ADR
    kinds[[0x90, 0xB0, 0xD0, 0xF0]] = _REFERENCES_ADRP
    kinds[0x58], kinds[0x91], kinds[0xF9], kinds[0xAA] = _LITERAL, _ADD, _LOAD, _MOVE
    return kinds.tobytes()


_KINDS = _kinds()
_EXACT = {
    _ADD: (np.uint32(0xFFC00000), np.uint32(0x91000000)),
    _LOAD: (np.uint32(0xFFC00000), np.uint32(0xF9400000)),
    _MOVE: (np.uint32(0xFFE0FFE0), np.uint32(0xAA0003E0)),
}


class _Arm64Search:
    """A search through consecutive pieces of one section."""

    def __init__(self, wanted: Addresses) -> None:
        self._wanted = wanted
        self._low = np.zeros(1 << _PAGE_BITS, np.bool_)
        self._low[(wanted & np.uint64(0xFFF)).astype(np.int64)] = True
        self._setters = np.full(32, -1, np.int64)
        """By register: the address of the instruction that set it last, in earlier pieces."""
        self._setting_words = np.zeros(32, np.uint32)

    def piece(self, words: Words, start: int) -> Iterator[References]:
        """Yield the references of a piece at the address ``start``."""
        # Five times as fast as an array's indexing, which converts indices to 8 bytes.
        highest = words.view(np.uint8)[3::4].tobytes()
        kinds = np.frombuffer(highest.translate(_KINDS), np.uint8)
        rows = np.flatnonzero(kinds == _BRANCH)
        distance = _signed((words[rows] & np.uint32(0x03FFFFFF)).astype(np.int64), 26)
        yield References(start + rows * 4, start + (rows + distance) * 4).only(self._wanted)
        # The linker makes these of ADRP where the address is near.
        rows = np.flatnonzero(kinds == _ADR)
        targets = start + rows * 4 + _page_distance(words[rows])
        yield References(start + rows * 4, targets).only(self._wanted)
        rows = np.flatnonzero(kinds == _LITERAL)
        distance = _signed(words[rows].astype(np.int64) >> 5 & 0x7FFFF, 19)
        yield References(start + rows * 4, start + (rows + distance) * 4).only(self._wanted)
        yield self._paged(words, kinds, start)

    def _paged(self, words: Words, kinds: npt.NDArray[np.uint8], start: int) -> References:
        """Return ADRP with ADD, or with LDR, of the low bits of an address."""
        setters = np.flatnonzero(kinds >= _REFERENCES_ADRP)
        kind, setting = kinds[setters], words[setters]
        is_setter = kind == _REFERENCES_ADRP
        for each, (mask, value) in _EXACT.items():
            is_setter |= (kind == each) & ((setting & mask) == value)
        setters, kind, setting = setters[is_setter], kind[is_setter], setting[is_setter]
        is_load = kind == _LOAD
        offset = (setting >> np.uint32(10) & np.uint32(0xFFF)) << (is_load * np.uint32(3))
        is_use = ((kind == _ADD) | is_load) & (offset < np.uint32(1 << _PAGE_BITS))
        is_use[is_use] = self._low[offset[is_use]]
        uses = np.flatnonzero(is_use)
        base = setting[uses] >> np.uint32(5) & np.uint32(31)
        register = (setting & np.uint32(31)).astype(np.uint8)
        parts: list[References] = []
        for number in np.unique(base).tolist():
            mine = np.flatnonzero(register == number)
            rows = uses[base == number]
            # The instruction that sets the base last has to be an ADRP: of other ones the value is
            # unknown.
            before = mine.searchsorted(rows) - 1
            is_earlier = before < 0
            last = mine[before] if len(mine) else np.zeros(len(rows), np.int64)
            word = np.where(is_earlier, self._setting_words[number], setting[last])
            place = np.where(is_earlier, self._setters[number], start + setters[last] * 4)
            is_page = (word & np.uint32(0x9F000000)) == np.uint32(0x90000000)
            rows, word, place = rows[is_page], word[is_page], place[is_page]
            pages = (place >> _PAGE_BITS) + _page_distance(word)
            targets = (pages << _PAGE_BITS) + offset[rows].astype(np.int64)
            parts.append(References(start + setters[rows] * 4, targets).only(self._wanted))
        # Of several values for one register, numpy stores the last.
        self._setters[register] = start + setters * 4
        self._setting_words[register] = setting
        return References.joined(parts)


def _page_distance(words: Words) -> Rows:
    """Return the number in ADR and ADRP."""
    adr = words.astype(np.int64)
    return _signed((adr >> 5 & 0x7FFFF) << 2 | adr >> 29 & 3, 21)


def _in(addresses: Rows, wanted: Addresses) -> npt.NDArray[np.bool_]:
    """Return which addresses are wanted."""
    if not len(wanted):
        return np.zeros(len(addresses), np.bool_)
    low, high = int(wanted[0]), int(wanted[-1])
    inside: npt.NDArray[np.bool_] = (addresses >= low) & (addresses <= high)
    some = addresses[inside].astype(np.uint64)
    rows = wanted.searchsorted(some).clip(max=len(wanted) - 1)
    inside[inside] = wanted[rows] == some
    return inside


def x86_references(code: memoryview, start: int, wanted: Addresses) -> References:
    """Return what may refer to any of ``wanted``; see :func:`arm64_references`."""
    if len(code) < _DISPLACEMENT or not len(wanted):
        return References.joined([])
    # In 32-bit arithmetic, which wraps: a displacement reaches no further.
    lowest = int(wanted[0]) - _X86_TAILS[-1]
    span = np.uint32(min(int(wanted[-1]) - lowest, (1 << 32) - 1))
    steps = np.arange(0, _X86_PIECE + _DISPLACEMENT, _DISPLACEMENT, dtype=np.uint32)
    parts: list[References] = []
    for at in range(0, len(code), _X86_PIECE):
        end = min(at + _X86_PIECE + _DISPLACEMENT - 1, len(code))
        for shift in range(_DISPLACEMENT):
            piece = code[at + shift : end]
            displacements = np.frombuffer(piece[: len(piece) // 4 * 4], "<u4")
            first = start + at + shift
            beyond = displacements + steps[: len(displacements)]
            beyond += np.uint32(first + _DISPLACEMENT - lowest & 0xFFFFFFFF)
            rows = np.flatnonzero(beyond <= span)
            targets = beyond[rows].astype(np.int64) + lowest
            places = first + rows * _DISPLACEMENT
            parts += [References(places, targets + tail).only(wanted) for tail in _X86_TAILS]
    return References.joined(parts)


def absolute_references(code: memoryview, start: int, wanted: Addresses) -> References:
    """Return where code has any of ``wanted`` as a number of 32 bits."""
    parts: list[References] = []
    for shift in range(_DISPLACEMENT):
        piece = code[shift:]
        numbers = np.frombuffer(piece[: len(piece) // 4 * 4], "<u4").astype(np.int64)
        places = start + shift + np.arange(len(numbers), dtype=np.int64) * _DISPLACEMENT
        parts.append(References(places, numbers).only(wanted))
    return References.joined(parts)


# --- Linkers' veneers on arm64: code that only leads to a function too far away for a call ---
#
# A veneer (branch island, range-extension thunk) is ``adrp x16``, ``add x16``, ``br x16``:
# registers that a linker may change between a call and the called function.

# Masks and values of encodings: *Arm Architecture Reference Manual*, C6.2.
_ADRP_X16 = (0x9F00001F, 0x90000010)
_ADD_X16 = (0xFFC003FF, 0x91000210)
_BR_X16 = 0xD61F0200
_INSTRUCTION = 4


def veneers(code: memoryview, start: int) -> dict[int, int]:
    """Return the stated address that each veneer leads to, by its own.

    Args:
        code: a section.
        start: its stated address.
    """
    words = np.frombuffer(code[: len(code) // _INSTRUCTION * _INSTRUCTION], "<u4")
    if len(words) < 3:  # noqa: PLR2004 - the veneer's instructions
        return {}
    # Branches through x16 are few: the rest is examined at those alone.
    rows = np.flatnonzero(words[2:] == _BR_X16)
    first, second = words[rows], words[rows + 1]
    is_veneer = ((second & _ADD_X16[0]) == _ADD_X16[1]) & ((first & _ADRP_X16[0]) == _ADRP_X16[1])
    rows, first, second = rows[is_veneer], first[is_veneer], second[is_veneer]
    at = start + rows.astype(np.int64) * _INSTRUCTION
    return dict(zip(at.tolist(), _targets(at, first, second).tolist(), strict=True))


def _targets(
    at: npt.NDArray[np.int64], adrp: npt.NDArray[np.uint32], add: npt.NDArray[np.uint32]
) -> npt.NDArray[np.int64]:
    high, low = (adrp >> 5 & 0x7FFFF).astype(np.int64), (adrp >> 29 & 3).astype(np.int64)
    pages = ((high << 2 | low) ^ 1 << 20) - (1 << 20)
    return (at & ~0xFFF) + (pages << 12) + (add >> 10 & 0xFFF).astype(np.int64)


# --- One image's functions, decoded on demand: their calls, and the names that these have ---

_MAX_FUNCTION_SIZE = 1 << 20
"""Bytes of a function that are followed."""
_VENEER, _ADRP = 16, 0x90
_VENEER_JUMPS = (b"\x00\x02\x1f\xd6", b"\x20\x02\x1f\xd6")
"""``br x16`` and ``br x17``: the registers that only linkers' code uses to jump."""
_STUB = CERTAINTIES.index(Certainty.STUB)


class ImageCode:
    """The code of an image. Functions are numbers of :attr:`table`."""

    def __init__(self, contents: MachOFileContents | ElfFileContents, rules: RuleSet) -> None:
        """Read nothing yet."""
        self.contents = contents
        self.base = int(contents.image.header_svma)
        """The stated address of offset 0."""
        self.watched: WatchedNames | ElfNames
        if isinstance(contents, ElfFileContents):
            self.watched = ElfNames(contents, rules)
        else:
            self.watched = WatchedNames(contents, rules)
        self._problems: list[MachtraceError] = []
        self.machine = _machine(contents.image.arch)
        """None if the architecture is not decoded."""

    @property
    def arch_name(self) -> str:
        """The architecture."""
        if isinstance(self.contents, ElfFileContents):
            return self.contents.image.arch.value
        return self.contents.image.header.arch_name

    def problems(self) -> list[MachtraceError]:
        """Return the errors of parts that could not be read so far."""
        return [*self._problems, *self.watched.all_problems()]

    @cached_property
    def names(self) -> Names:
        """The meaning of the image's addresses."""
        names = self.watched.names()
        for start, code in self.sections if isinstance(self.machine, Arm64) else ():
            for at, target in veneers(code, start).items():
                if target in names.stubs:
                    names.stubs[at] = names.stubs[target]
                elif target in names.message_stubs:
                    names.message_stubs[at] = names.message_stubs[target]
        return names

    @cached_property
    def table(self) -> SymbolTable:
        """The image's functions, and stubs of other images'.

        Raises:
            FormatError, MemoryReadError: a table is malformed.
        """
        if isinstance(self.contents, ElfFileContents):
            return elf_symbol_table(self.contents)
        return macho_symbol_table(self.contents)

    @cached_property
    def functions(self) -> npt.NDArray[np.int64]:
        """The numbers of functions that are no stubs."""
        return np.flatnonzero(self.table.certainties != _STUB)

    @cached_property
    def sections(self) -> tuple[tuple[int, memoryview], ...]:
        """The address and bytes of each section with functions that can be read."""
        return tuple(self._sections())

    def _sections(self) -> Iterator[tuple[int, memoryview]]:
        contents = self.contents
        if isinstance(contents, ElfFileContents):
            places = code_sections(contents)
        else:
            places = []
            for section in contents.image.code_sections:
                if section.name.endswith("stubs") or section.name == "__stub_helper":
                    continue
                if is_encrypted(contents, section.address, section.size):
                    self._problems.append(
                        MachtraceError(
                            f"{contents.source}: the code is encrypted, as the App Store's is",
                            remedy="scan the app as it was built, before it was submitted",
                        )
                    )
                    continue
                places.append((section.address, section.size))
        for address, size in places:
            try:
                yield address, contents.read_svma(Svma(address), size)
            except MachtraceError as error:
                self._problems.append(error)

    def offset_of(self, address: int) -> ImageOffset:
        """Return the offset of a stated address."""
        return ImageOffset(address - self.base)

    def references(self, targets: npt.NDArray[np.uint64]) -> References:
        """Return the places in code that may refer to stated addresses, which ascend."""
        search = arm64_references if isinstance(self.machine, Arm64) else x86_references
        parts = [search(code, at, targets) for at, code in self.sections]
        if self.names.has_absolute:
            parts += [absolute_references(code, at, targets) for at, code in self.sections]
        return References.joined(parts)

    def functions_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the distinct functions that hold stated addresses."""
        places = places[places >= self.base]
        ids = np.asarray(self.table.ids((places - self.base).astype(np.uint64)), np.int64)
        return np.unique(ids[ids >= 0])

    def start(self, number: int) -> int:
        """Return the stated address of a function."""
        return int(self.table.starts[number]) + self.base

    def veneer(self, address: int) -> Use | None:
        """Return the jump of a linker's veneer at a stated address; None if it is none.

        On arm64 a branch reaches 128 MiB; linkers put such code between. It has no library.
        """
        if not isinstance(self.machine, Arm64):
            return None
        for start, code in self.sections:
            if not start <= address < start + len(code):
                continue
            body = bytes(code[address - start : address - start + _VENEER])
            for at in range(0, len(body) - 3, 4):
                if body[at : at + 4] in _VENEER_JUMPS:
                    uses = follow(
                        self.machine, self.names, body[: at + 4], address, None, every=True
                    )
                    jumps = [use for use in uses if use.after == address + at + 4]
                    return jumps[-1] if jumps and body[3] & 0x9F == _ADRP else None
        return None

    def uses(self, number: int, *, every: bool = False) -> list[Use]:
        """Return the calls of a function; none if its code cannot be read.

        Args:
            number: the function.
            every: whether calls and jumps count that have no name.
        """
        first = self.start(number)
        if first in self.names.stubs or first in self.names.message_stubs:
            return []  # a linker's veneer: its callers call what it leads to
        last = min(int(self.table.ends[number]) + self.base, first + _MAX_FUNCTION_SIZE)
        for start, code in self.sections:
            if start <= first < start + len(code) and self.machine is not None:
                body = bytes(code[first - start : last - start])
                owner = self.watched.owners.get(first)
                return follow(self.machine, self.names, body, first, owner, every=every)
        return []


def _machine(arch: Arch | None) -> Machine | None:
    if arch is None or not (arch.is_arm64 or arch is Arch.X86_64):
        return None
    return X86() if arch is Arch.X86_64 else Arm64()
