"""Frozen classes behave like the standard library's."""

import dataclasses
import inspect
import pickle
import sys
from dataclasses import field

import pytest

from machtrace import frozen


def classes(dataclass):
    """Build a base, a derived class, and one with its own method of each kind."""

    @dataclass(frozen=True, slots=True)
    class Base:
        number: int
        text: str = "x"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Derived(Base):
        items: list[int] = field(default_factory=list)
        note: str = field(default="", compare=False, repr=False)

    @dataclass(frozen=True, slots=True, eq=False)
    class ByIdentity:
        number: int

    @dataclass(frozen=True)
    class WithoutSlots:  # noqa: PLW1641 - the decorator adds __hash__
        number: int
        double: int = 0

        def __post_init__(self):
            object.__setattr__(self, "double", 2 * self.number)

        def __eq__(self, other):
            return self.number == other.number

        def __repr__(self):
            return "own"

    return Base, Derived, ByIdentity, WithoutSlots


@pytest.mark.parametrize(
    "behaviour",
    [
        lambda base, *_: repr(base(1)),
        lambda base, *_: str(inspect.signature(base)),
        lambda _, derived, *__: repr(derived(1, items=[2], note="n")),
        lambda _, derived, *__: str(inspect.signature(derived)),
        lambda _, derived, *__: derived(1, note="a") == derived(1, note="b"),
        lambda base, derived, *_: base(1) == derived(1),
        lambda base, *_: (base(1) == base(1), base(1) == base(2), base(1) == 1),
        lambda base, *_: hash(base(1)) == hash(base(1, "x")),
        lambda base, *_: dataclasses.replace(base(1), text="y"),
        lambda base, *_: dataclasses.asdict(base(1)),
        lambda base, *_: [row.name for row in dataclasses.fields(base)],
        lambda base, *_: base.__match_args__,
        lambda base, *_: base.__slots__,
        lambda *all_: all_[2](1) == all_[2](1),
        lambda *all_: (all_[3](4).double, repr(all_[3](4)), all_[3](1) == all_[3](1)),
        lambda *all_: hash(all_[3](4)) == hash(all_[3](4)),
    ],
)
def test_behaviour_equals_the_standard_librarys(behaviour):
    actual, expected = (
        behaviour(*classes(decorator)) for decorator in (frozen.dataclass, dataclasses.dataclass)
    )
    assert repr(actual) == repr(expected)


def test_fields_cannot_be_assigned_or_deleted():
    for cls in classes(frozen.dataclass):
        value = cls(1)
        with pytest.raises(dataclasses.FrozenInstanceError, match="assign to field 'number'"):
            value.number = 2
        with pytest.raises(dataclasses.FrozenInstanceError, match="delete field 'number'"):
            del value.number


def test_unhashable_fields_make_the_value_unhashable():
    derived = classes(frozen.dataclass)[1]
    with pytest.raises(TypeError, match="unhashable"):
        hash(derived(1))


def test_values_can_be_pickled(monkeypatch):
    base = classes(frozen.dataclass)[0]
    base.__qualname__ = "Base"
    monkeypatch.setattr(sys.modules[base.__module__], "Base", base, raising=False)
    value = base(3, "y")
    assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301 - our own bytes


def test_classes_that_are_not_frozen_are_the_standard_librarys():
    @frozen.dataclass(slots=True)
    class Counter:
        count: int = 0

    counter = Counter()
    counter.count += 1
    assert counter == Counter(1)
