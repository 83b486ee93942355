"""Pointers of an image as columns: those that lead into it, and those bound to symbols."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachOError
from machtrace.model.address import Svma

Addresses: TypeAlias = npt.NDArray[np.uint64]
"""A column of :data:`~machtrace.model.address.Svma`."""


@dataclass(frozen=True, slots=True, eq=False)
class RebaseRows:
    """Pointers into the image, ascending by place, no place twice."""

    places: Addresses
    targets: Addresses
    """Without tags and signatures."""

    def __len__(self) -> int:
        return len(self.places)

    @classmethod
    def sorted(cls, places: Addresses, targets: Addresses) -> RebaseRows:
        """Rows in any order; of several at one place the first counts."""
        kept, order = np.unique(places, return_index=True)
        return cls(kept, targets[order])

    def target_at(self, at: Svma) -> Svma | None:
        """Where the pointer at ``at`` leads; None where there is none."""
        # A Python int would turn the whole column into floating point.
        row = int(self.places.searchsorted(np.uint64(at)))
        if row == len(self) or int(self.places[row]) != at:
            return None
        return Svma(int(self.targets[row])) or None

    def targets_at(self, at: Addresses) -> Addresses:
        """Where the pointers at ``at`` lead; 0 where there is none."""
        if not len(self.places):
            return np.zeros(len(at), np.uint64)
        rows = self.places.searchsorted(at).clip(max=len(self.places) - 1)
        found: Addresses = np.where(self.places[rows] == at, self.targets[rows], np.uint64(0))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class BindRows:
    """Pointers to what is sought by name, ascending by place, no place twice."""

    places: Addresses
    symbols: npt.NDArray[np.int32]
    """Of each: which of :attr:`names`."""
    addends: npt.NDArray[np.int64]
    """Bytes after the symbol."""
    names: tuple[str, ...]
    """As the symbol table spells them."""

    def __len__(self) -> int:
        return len(self.places)

    @classmethod
    def sorted(
        cls,
        places: Addresses,
        symbols: npt.NDArray[np.int32],
        addends: npt.NDArray[np.int64],
        names: Sequence[str],
    ) -> BindRows:
        """Rows in any order; of several at one place the first counts."""
        kept, order = np.unique(places, return_index=True)
        return cls(kept, symbols[order], addends[order], tuple(names))

    def symbol_at(self, at: Svma) -> str | None:
        """The name that the pointer at ``at`` is bound to; None where it is to none."""
        row = int(self.places.searchsorted(np.uint64(at)))
        if row == len(self) or int(self.places[row]) != at:
            return None
        return self.names[int(self.symbols[row])]

    def symbols_at(self, at: Addresses) -> list[str]:
        """The names that the pointers at ``at`` are bound to; empty where there is none."""
        if not len(self.places):
            return [""] * len(at)
        rows = self.places.searchsorted(at).clip(max=len(self.places) - 1)
        found = np.where(self.places[rows] == at, self.symbols[rows], -1)
        return [self.names[symbol] if symbol >= 0 else "" for symbol in found.tolist()]


@dataclass(frozen=True, slots=True, eq=False)
class PointerRows:
    """All pointers that an image's tables tell of."""

    rebases: RebaseRows
    binds: BindRows
    problem: MachOError | None = None
    """What ended the reading of a table too early; what came before it is here."""


class RowPointers(ABC):
    """What :class:`~machtrace.formats.macho.fixups.pointers.Pointers` answer from the rows of tables."""

    __slots__ = ()

    @property
    @abstractmethod
    def rebases(self) -> RebaseRows:
        """All that lead into the image."""

    @property
    @abstractmethod
    def binds(self) -> BindRows:
        """All that are bound by name."""

    def target(self, at: Svma, /) -> Svma | None:
        """See :meth:`machtrace.formats.macho.fixups.pointers.Pointers.target`."""
        return self.rebases.target_at(at)

    def targets(self, at: Addresses, /) -> Addresses:
        """See :meth:`machtrace.formats.macho.fixups.pointers.Pointers.targets`."""
        return self.rebases.targets_at(at)

    def symbol(self, at: Svma, /) -> str | None:
        """See :meth:`machtrace.formats.macho.fixups.pointers.Pointers.symbol`."""
        return self.binds.symbol_at(at)

    def symbols(self, at: Addresses, /) -> list[str]:
        """See :meth:`machtrace.formats.macho.fixups.pointers.Pointers.symbols`."""
        return self.binds.symbols_at(at) if len(at) else []


def no_rebases() -> RebaseRows:
    """No rows."""
    return RebaseRows(np.zeros(0, np.uint64), np.zeros(0, np.uint64))


def no_binds() -> BindRows:
    """No rows."""
    return BindRows(np.zeros(0, np.uint64), np.zeros(0, np.int32), np.zeros(0, np.int64), ())


def joined(columns: Iterable[npt.NDArray[np.generic]], dtype: npt.DTypeLike) -> npt.NDArray:  # type: ignore[type-arg]
    """The columns one after the other; an empty one where there are none."""
    return np.concatenate([np.zeros(0, dtype), *columns])
