"""Consume the keys that are understood from a JSON object; the remainder becomes ``details``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import TypeVar
from uuid import UUID

from machtrace.frozen import dataclass
from machtrace.model.report import Details, JsonValue
from machtrace.reports.images import NO_UUID, uuid_of

_T = TypeVar("_T", str, bool, list[JsonValue])
_WORD = 1 << 64
NO_OBJECT = "entry"
"""The detail that stores a non-object in an object's place."""


@dataclass(slots=True)
class ObjectReader:
    """A JSON object whose values are consumed.

    A value of an unexpected type is not consumed: it remains, with a warning, so that nothing is
    lost.
    """

    left: dict[str, JsonValue]
    """A copy of the object's entries, less the consumed ones."""
    where: str = ""
    """How warnings name the object."""
    warnings: list[str] = field(default_factory=list)
    """Shared by the objects of a report."""
    _opened: dict[str, ObjectReader] = field(default_factory=dict)

    @classmethod
    def of(cls, value: JsonValue, where: str, warnings: list[str]) -> ObjectReader:
        """Wrap an object; anything else becomes its only entry, with a warning."""
        if isinstance(value, dict):
            return cls(dict(value), where, warnings)
        if value is None:
            return cls({}, where, warnings)
        warnings.append(f"{where} is not an object; stored as is")
        return cls({NO_OBJECT: value}, where, warnings)

    def text(self, key: str) -> str | None:
        """Consume a string."""
        return self._consumed(key, str)

    def integer(self, key: str, *, least: int = 0, below: int = _WORD) -> int | None:
        """Consume a whole number in a range; by default that of an unsigned word."""
        value = self.left.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value < below:
            del self.left[key]
            return value
        self._other(key)
        return None

    def boolean(self, key: str) -> bool | None:
        """Consume a boolean."""
        return self._consumed(key, bool)

    def uuid(self, key: str) -> UUID | None:
        """Consume a UUID, with or without dashes; one of zeros means none and remains."""
        value = self.left.get(key)
        uuid = uuid_of(value)
        if uuid is not None:
            del self.left[key]
        elif not isinstance(value, str) or value.replace("-", "") != NO_UUID:
            self._other(key)
        return uuid

    def objects(self, key: str) -> Sequence[JsonValue]:
        """Consume a list's items."""
        return self._consumed(key, list) or ()

    def each(self, key: str) -> Iterator[ObjectReader]:
        """Consume a list, and wrap its items."""
        for number, item in enumerate(self.objects(key)):
            yield ObjectReader.of(item, f"{self.where} {key}[{number}]".strip(), self.warnings)

    def inner(self, key: str) -> ObjectReader:
        """Return an object to consume from in turn; an empty one if absent.

        What remains of it stays in this object; nothing does once all of it is consumed.
        """
        if key in self._opened:
            return self._opened[key]
        value = self.left.get(key)
        where = f"{self.where} {key}".strip()
        if not isinstance(value, dict):
            self._other(key)
            return ObjectReader({}, where, self.warnings)
        inner = ObjectReader(dict(value), where, self.warnings)
        if value:
            self.left[key] = inner.left
            self._opened[key] = inner
        return inner

    def details(self) -> Details:
        """Return what remains."""
        for key, inner in self._opened.items():
            if not inner.details():
                del self.left[key]
        self._opened.clear()
        return self.left

    def _consumed(self, key: str, kind: type[_T]) -> _T | None:
        value = self.left.get(key)
        if isinstance(value, kind):
            del self.left[key]
            return value
        self._other(key)
        return None

    def _other(self, key: str) -> None:
        if self.left.get(key) is not None:
            where = f"{self.where} {key}".strip()
            self.warnings.append(f"{where} has an unexpected value; stored as is")
