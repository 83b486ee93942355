"""Libraries by the names of their classes, functions and modules.

A table of a rules file: ``{ name = "AFNetworking", classes = ["AF"], functions = ["af_"],
modules = ["AFNetworking"] }``. Classes and functions are prefixes, and what follows a prefix of a
class must not continue a word: ``AF`` is ``AFURLSession``'s, not ``Affine``'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from machtrace.errors import RulesError
from machtrace.frozen import dataclass

_KEYS = frozenset({"name", "classes", "functions", "modules"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """The names that one library's code has."""

    name: str
    classes: tuple[str, ...] = ()
    """Prefixes of Objective-C classes."""
    functions: tuple[str, ...] = ()
    """Prefixes of C functions."""
    modules: tuple[str, ...] = ()
    """Swift modules."""

    def class_prefix(self, class_name: str) -> str | None:
        """Return the prefix that claims a class; None if none does."""
        for prefix in self.classes:
            following = class_name[len(prefix) : len(prefix) + 1]
            if class_name.startswith(prefix) and not following.islower():
                return prefix
        return None


def parse_libraries(rows: object, source: str) -> tuple[Library, ...]:
    """Parse the libraries of a file.

    Raises:
        RulesError: a row is not a library.
    """
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RulesError(f"{source}: libraries is not an array of tables")
    return tuple(_library(row, f"{source}: library {at}") for at, row in enumerate(rows, 1))


def _library(row: Mapping[str, object], place: str) -> Library:
    unknown = sorted(set(row) - _KEYS)
    if unknown:
        raise RulesError(f"{place}: unknown key {unknown[0]!r}")
    name = row.get("name")
    if not isinstance(name, str) or not name:
        raise RulesError(f"{place}: name is missing")
    names = {key: _names(row.get(key, []), f"{place} ({name}): {key}") for key in _KEYS - {"name"}}
    if not any(names.values()):
        raise RulesError(f"{place} ({name}): neither classes, functions nor modules")
    return Library(name=name, **names)


def _names(value: object, place: str) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise RulesError(f"{place}: not an array of strings")
    if not all(isinstance(each, str) and each for each in value):
        raise RulesError(f"{place}: not an array of strings that are not empty")
    return tuple(value)
