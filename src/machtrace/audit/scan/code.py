"""One image's functions, decoded on demand: their calls, and the names that these have."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from machtrace.audit.rules import RuleSet
from machtrace.audit.scan.elf_names import ElfNames, code_sections
from machtrace.audit.scan.flow import Names, follow
from machtrace.audit.scan.machines import X86, Arm64, Machine
from machtrace.audit.scan.names import WatchedNames
from machtrace.audit.scan.references import (
    References,
    absolute_references,
    arm64_references,
    x86_references,
)
from machtrace.audit.scan.values import Use
from machtrace.audit.scan.veneers import veneers
from machtrace.errors import MachtraceError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.macho.contents import MachOFileContents, is_encrypted
from machtrace.model.address import ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.symbol import Certainty
from machtrace.symbols.elf import elf_symbol_table
from machtrace.symbols.macho.table import macho_symbol_table
from machtrace.symbols.table import CERTAINTIES, SymbolTable

_LARGEST_FUNCTION = 1 << 20
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
        last = min(int(self.table.ends[number]) + self.base, first + _LARGEST_FUNCTION)
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
