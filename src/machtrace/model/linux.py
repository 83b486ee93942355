"""What Linux keeps of a process besides threads and memory; its cores have a note for each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from machtrace.model.address import Avma, FileOffset


class FileMapping(NamedTuple):
    """A range of a file that is mapped (``NT_FILE``)."""

    start: Avma
    end: Avma
    offset: FileOffset
    """Where in the file :attr:`start` is."""
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinuxFacts:
    """What debuggers find a process' program and libraries by, and how ``ps`` shows it."""

    auxiliary_vector: bytes = field(default=b"", repr=False)
    """As the kernel made it: pairs of words of the process' own width (``NT_AUXV``)."""
    file_mappings: tuple[FileMapping, ...] = field(default=(), repr=False)
    """By address."""
    name: str = ""
    """Of the process, at most 15 bytes (``pr_fname``)."""
    arguments: str = ""
    """Its command line, in one (``pr_psargs``)."""
    parent: int = 0
    """Process id."""
    user: int = 0
    """User id."""
    group: int = 0
    """Group id."""
    signal: int = 0
    """What ended it; 0 where nothing did."""
