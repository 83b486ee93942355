"""The description of a fuzz target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuzz.mutation import Mutation


class ContractError(Exception):
    """The code under test violated its documentation."""


@dataclass(frozen=True, slots=True)
class Target:
    """A part of the package, and how to feed it."""

    name: str
    run: Callable[[bytes], None]
    """Takes any bytes; raises at most a MachtraceError where all is well."""
    seeds: Callable[[], Sequence[bytes]]
    """Well-formed inputs. Building them may take a compiler, and some seconds, once."""
    mutations: tuple[Mutation, ...] = ()
    """Mutations of its own format, beside those of any bytes."""
    most: int | None = None
    """Most inputs of one run, for a slow target."""
