"""``.ARM.exidx`` and ``.ARM.extab``: the unwinding instructions of 32-bit arm's functions.

Source: *Exception Handling ABI for the Arm Architecture* (EHABI), sections 5 to 7 and 9. An entry
has two words: the offset of the function; and its instructions, or their offset, or that it cannot
be unwound. Offsets have 31 bits and are relative to the word itself.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt

from machtrace.errors import ElfError
from machtrace.formats.elf.contents import ElfContents
from machtrace.formats.elf.structs import ElfType
from machtrace.frozen import dataclass
from machtrace.model.address import Svma
from machtrace.model.arch import Arch

PT_ARM_EXIDX = 0x70000001
ENTRY_SIZE = 8
_WORD = 4
_CANTUNWIND = 1
_INLINE = 1 << 31
_PREL31 = (1 << 31) - 1
_SIGN = 1 << 30
_MAX_PERSONALITY_LENGTH = 2
"""The last numbered personality: 0 has three bytes of instructions, the others more words."""


class Personality(Enum):
    """The personality routine of a function."""

    STANDARD = "standard"
    """One of the ABI's own: its instructions follow its number."""
    GENERIC = "generic"
    """A language's own; compilers put the same instructions after its address."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the table."""

    start: Svma
    end: Svma
    """The start of the next entry's function. Linkers omit entries that repeat the one before, so
    the range may have several functions."""
    instructions: bytes | None
    """In the form of EHABI, section 10.3; None if the function cannot be unwound."""
    personality: Personality = Personality.STANDARD


class ExceptionIndex:
    """The table of one image."""

    def __init__(self, contents: ElfContents, address: Svma, data: memoryview) -> None:
        """``data``: the table, which is at ``address``."""
        self._contents = contents
        self._address = address
        self.source = f"{contents.source} .ARM.exidx"
        self._order = contents.image.layout.byte_order
        count = len(data) // ENTRY_SIZE
        # Both words of all entries; the first is an offset from itself, with a sign in bit 30.
        words = np.frombuffer(data[: count * ENTRY_SIZE], f"{self._order}u4").reshape(count, 2)
        own_addresses = np.arange(count, dtype=np.int64) * ENTRY_SIZE + address
        offsets = words[:, 0].astype(np.int64) & _PREL31
        offsets -= (offsets & _SIGN) << 1
        self._words = words
        self.starts: npt.NDArray[np.int64] = (own_addresses + offsets) & ((1 << 32) - 2)
        """Svmas of functions, ascending, without the Thumb bit."""

    @classmethod
    def of_elf(cls, contents: ElfContents) -> ExceptionIndex | None:
        """Read the section ``.ARM.exidx``, else the segment PT_ARM_EXIDX; return None without both.

        Object files have none: they have no addresses before they are linked.

        Raises:
            MemoryReadError: it was not captured.
        """
        image = contents.image
        if image.arch is not Arch.ARM or image.type is ElfType.RELOCATABLE:
            return None
        section = image.section(".ARM.exidx")
        if section is not None and section.has_bytes and section.size:
            address, size = section.address, section.size
        else:
            segment = image.segment(PT_ARM_EXIDX)
            if segment is None or not segment.file_size:
                return None
            address, size = segment.address, segment.file_size
        return cls(contents, address, contents.read_svma(address, size))

    def find(self, address: Svma) -> Entry | None:
        """Return the entry of the function that holds ``address``; None before the first.

        Raises:
            ElfError: what the entry points to is malformed.
            MemoryReadError: it was not captured.
        """
        index = int(self.starts.searchsorted(np.int64(address), "right")) - 1
        if not 0 <= index < len(self.starts):
            return None
        start = Svma(int(self.starts[index]))
        end = int(self.starts[index + 1]) if index + 1 < len(self.starts) else 1 << 32
        word = int(self._words[index, 1])
        if word == _CANTUNWIND:
            return Entry(start, Svma(end), None)
        if word & _INLINE:
            return Entry(start, Svma(end), self._inline(word, index))
        word_address = self._address + ENTRY_SIZE * index + _WORD
        return self._in_table(start, Svma(end), self._target(word, word_address))

    def _inline(self, word: int, index: int) -> bytes:
        if word >> 24 & 0x7F:
            raise self._fail(
                f"invalid personality {word >> 24 & 0x7F} in an entry", ENTRY_SIZE * index
            )
        return word.to_bytes(_WORD, "big")[1:]

    def _in_table(self, start: Svma, end: Svma, table: int) -> Entry:
        first = self._word(table)
        if first & _INLINE:
            number = first >> 24 & 0x7F
            if number == 0:
                return Entry(start, end, first.to_bytes(_WORD, "big")[1:])
            if number > _MAX_PERSONALITY_LENGTH:
                raise self._fail(f"unknown personality {number}", table)
            more = self._more(table + _WORD, first >> 16 & 0xFF)
            return Entry(start, end, first.to_bytes(_WORD, "big")[2:] + more)
        second = self._word(table + _WORD)
        more = self._more(table + 2 * _WORD, second >> 24)
        return Entry(start, end, second.to_bytes(_WORD, "big")[1:] + more, Personality.GENERIC)

    def _more(self, address: int, words: int) -> bytes:
        """Return further instructions, which are in each word's bytes from the highest down."""
        data = self._contents.read_svma(Svma(address), _WORD * words)
        return np.frombuffer(data, f"{self._order}u4").astype(">u4").tobytes()

    def _word(self, address: int) -> int:
        return int(
            np.frombuffer(self._contents.read_svma(Svma(address), _WORD), f"{self._order}u4")[0]
        )

    @staticmethod
    def _target(word: int, word_address: int) -> int:
        offset = word & _PREL31
        return (word_address + offset - ((offset & _SIGN) << 1)) & 0xFFFFFFFF

    def _fail(self, message: str, offset: int) -> ElfError:
        return ElfError(message, source=self.source, offset=offset)
