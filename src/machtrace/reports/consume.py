"""ObjectReader what is understood out of an object, so that what is left is what is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from machtrace.model.json_value import Details, JsonValue

_WORD = 1 << 64
_UUID_DIGITS = 32
NO_OBJECT = "entry"
"""What is kept under this is in an object's place and is none."""


@dataclass(slots=True)
class ObjectReader:
    """An object of JSON that values are taken out of.

    A value of another type than was expected is not taken: it is left, and a warning says so.
    Thus nothing is lost, whatever an object holds.
    """

    left: dict[str, JsonValue]
    """A copy of the object's own entries, less what was taken."""
    where: str = ""
    """What to call the object in warnings."""
    warnings: list[str] = field(default_factory=list)
    """Shared among the objects of a report."""
    _opened: dict[str, ObjectReader] = field(default_factory=dict)

    @classmethod
    def of(cls, value: JsonValue, where: str, warnings: list[str]) -> ObjectReader:
        """Of an object; of anything else, about which a warning is given, with it as only entry."""
        if isinstance(value, dict):
            return cls(dict(value), where, warnings)
        if value is None:
            return cls({}, where, warnings)
        warnings.append(f"{where} is no object; it was kept as it is")
        return cls({NO_OBJECT: value}, where, warnings)

    def text(self, key: str) -> str | None:
        """A string."""
        value = self.left.get(key)
        if isinstance(value, str):
            del self.left[key]
            return value
        self._other(key)
        return None

    def integer(self, key: str, *, least: int = 0, below: int = _WORD) -> int | None:
        """A whole number in a range: an unsigned word's, unless others are given."""
        value = self.left.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value < below:
            del self.left[key]
            return value
        self._other(key)
        return None

    def boolean(self, key: str) -> bool | None:
        """True or false."""
        value = self.left.get(key)
        if isinstance(value, bool):
            del self.left[key]
            return value
        self._other(key)
        return None

    def uuid(self, key: str) -> UUID | None:
        """A UUID, with dashes or without; one of zeros stands for none and is left."""
        value = self.left.get(key)
        if isinstance(value, str) and len(digits := value.replace("-", "")) == _UUID_DIGITS:
            try:
                uuid = UUID(hex=digits)
            except ValueError:
                self._other(key)
                return None
            if uuid.int:
                del self.left[key]
                return uuid
            return None
        self._other(key)
        return None

    def objects(self, key: str) -> Sequence[JsonValue]:
        """A list's items."""
        value = self.left.get(key)
        if isinstance(value, list):
            del self.left[key]
            return value
        self._other(key)
        return ()

    def inner(self, key: str) -> ObjectReader:
        """An object, to take from in turn; an empty one where there is none.

        What is left of it stays at its place; nothing does where all of it was taken.
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
        """What is left."""
        for key, inner in self._opened.items():
            if not inner.details():
                del self.left[key]
        self._opened.clear()
        return self.left

    def _other(self, key: str) -> None:
        if self.left.get(key) is not None:
            where = f"{self.where} {key}".strip()
            self.warnings.append(f"{where} is not what was expected; it was kept as it is")
