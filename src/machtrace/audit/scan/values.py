"""The values of registers that matter to a call: addresses, names, objects."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Address(NamedTuple):
    """A stated address."""

    at: int


class Text(NamedTuple):
    """A string: a C string, or an NSString in the image."""

    text: str


class Selector(NamedTuple):
    """An Objective-C selector."""

    name: str


class ClassObject(NamedTuple):
    """An Objective-C class."""

    name: str


class Instance(NamedTuple):
    """An object of a class, or of a subclass."""

    class_name: str


class Receiver(NamedTuple):
    """The object whose method the function is: ``self``."""

    class_name: str
    is_class: bool
    is_super: bool = False
    """Whether its superclass's method is called."""


class Import(NamedTuple):
    """The address of a function or of a variable of another image."""

    symbol: str


Value: TypeAlias = Address | Text | Selector | ClassObject | Instance | Receiver | Import


class SymbolUse(NamedTuple):
    """An instruction that calls a function of another image, or takes a symbol's address."""

    symbol: str
    place: int
    """The instruction's address (Svma)."""
    after: int
    """That of the next one: the return address of a call."""
    is_call: bool
    is_tail: bool = False
    """Whether the function ends with it, so that its return address is its caller's."""


class MessageUse(NamedTuple):
    """A call of an Objective-C method."""

    selector: str
    receiver: Value | None
    place: int
    after: int
    is_tail: bool = False


class TextUse(NamedTuple):
    """A call that is given a name as a string: dlsym, NSSelectorFromString, valueForKey:."""

    text: str
    function: str
    place: int
    after: int


class CodeUse(NamedTuple):
    """A call of this image's code, or of code that the instructions do not show."""

    target: int | None
    """The stated address; None if it is not shown."""
    place: int
    after: int
    is_tail: bool = False


Use: TypeAlias = SymbolUse | MessageUse | TextUse | CodeUse
