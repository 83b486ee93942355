"""The facts of a Linux process that a core has besides threads, from ``/proc`` and the loader."""

from __future__ import annotations

import os
from collections.abc import Sequence

from machtrace.errors import TargetGoneError
from machtrace.formats.elf.core.loader_memory import loaded_objects
from machtrace.formats.elf.structs import LAYOUTS
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryReader, MemoryRegion, without_overlap
from machtrace.model.snapshot import FileMapping, LinuxFacts
from machtrace.targets.linux.procfs import ProcessDirectory
from machtrace.targets.shared.proc_maps import Mapping

_WIDE = 8


@dataclass(frozen=True, slots=True)
class GatheredFacts:
    """The facts, and the memory that the loader keeps for debuggers."""

    facts: LinuxFacts
    regions: tuple[MemoryRegion, ...]


class FactsGatherer:
    """Gathers the facts of one process; again only once it has mapped other files."""

    def __init__(self, directory: ProcessDirectory, arch: Arch) -> None:
        self._directory = directory
        self._layout = LAYOUTS[2 if arch.pointer_size == _WIDE else 1, 1]
        self._mappings: Sequence[Mapping] = ()
        self._files: Sequence[Mapping] = ()
        self._gathered: GatheredFacts | None = None

    def gather(self, mappings: Sequence[Mapping], memory: MemoryReader) -> GatheredFacts:
        """Return the current facts of a process with these ``mappings``; unreadable ones are empty.

        Raises:
            TargetGoneError: the process is gone.
        """
        if self._gathered is not None and self._mappings is mappings:
            return self._gathered
        files = [mapping for mapping in mappings if mapping.is_file]
        if self._gathered is None or self._files != files:
            self._gathered = self._gather(mappings, memory)
            self._files = files
        self._mappings = mappings
        return self._gathered

    def _gather(self, mappings: Sequence[Mapping], memory: MemoryReader) -> GatheredFacts:
        status = self._directory.status()
        thread = self._directory.live_thread()
        vector = os.fsencode(self._text(f"task/{thread}/auxv"))
        copy = _CopyingMemory(memory)
        loaded_objects(copy, vector, self._layout)
        facts = LinuxFacts(
            auxiliary_vector=vector,
            file_mappings=tuple(
                FileMapping(m.start, m.end, m.offset, m.path) for m in mappings if m.is_file
            ),
            name=status.get("Name", ""),
            arguments=self._text(f"task/{thread}/cmdline").replace("\0", " ").rstrip(),
            parent=_first_number(status.get("PPid", "")),
            user=_first_number(status.get("Uid", "")),
            group=_first_number(status.get("Gid", "")),
        )
        return GatheredFacts(facts, tuple(without_overlap(copy.regions)))

    def _text(self, name: str) -> str:
        try:
            return self._directory.read(name)
        except TargetGoneError:
            raise
        except OSError:
            return ""


class _CopyingMemory:
    """Keeps what is read through it."""

    def __init__(self, memory: MemoryReader) -> None:
        self._memory = memory
        self.regions: list[MemoryRegion] = []

    def read(self, address: Avma, size: int, /) -> bytes | memoryview:
        data = self._memory.read(address, size)
        self.regions.append(MemoryRegion(address, data))
        return data


def _first_number(text: str) -> int:
    words = text.split()
    return int(words[0]) if words and words[0].isdecimal() else 0
