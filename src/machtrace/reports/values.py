"""Forms of values that hold no others: how each is written as JSON, and read again."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from machtrace.model.image import BuildId, shown_identifier
from machtrace.model.json_value import JsonValue
from machtrace.reports.identifiers import BUILD_ID, build_id


class UnfitError(ValueError):
    """A value of JSON is not what its place asks for."""


class Form(NamedTuple):
    """One type's two directions, and how a schema describes it."""

    write: Callable[[Any], JsonValue]
    read: Callable[[JsonValue], Any]
    """Raises :class:`UnfitError`."""
    schema: Callable[[], dict[str, JsonValue]]


PLAIN: dict[Any, tuple[type, str]] = {
    str: (str, "string"),
    int: (int, "integer"),
    bool: (bool, "boolean"),
}


def plain(kind: type, name: str) -> Form:
    """A string, a number or a truth value."""

    def read(value: JsonValue) -> object:
        if type(value) is not kind:
            raise UnfitError(f"{shown(value)} is no {name}")
        return value

    return Form(_same, read, lambda: {"type": name})


def _same(value: Any) -> JsonValue:  # noqa: ANN401 - as JSON has it already
    return value  # type: ignore[no-any-return]


class OpaqueDetails:
    """Stands for :data:`Details` among types, which is an alias of much."""


def details() -> Form:
    """An object that is kept as it is."""

    def read(value: JsonValue) -> JsonValue:
        if not isinstance(value, dict):
            raise UnfitError(f"{shown(value)} is no object")
        return value

    return Form(dict, read, lambda: {"type": "object"})


def items(value: JsonValue) -> list[JsonValue]:
    """The items of a list."""
    if not isinstance(value, list):
        raise UnfitError(f"{shown(value)} is no list")
    return value


def identifier() -> Form:
    """A UUID in capitals with dashes, or a build-id in small letters without."""

    def read(value: JsonValue) -> UUID | BuildId:
        try:
            if isinstance(value, str) and (found := build_id(value)) is not None:
                return found
            return UUID(value)  # type: ignore[arg-type]  # what is no text is refused as well
        except (ValueError, TypeError, AttributeError):
            raise UnfitError(f"{shown(value)} is no UUID and no build-id") from None

    def schema() -> dict[str, JsonValue]:
        uuid: JsonValue = {"type": "string", "format": "uuid"}
        return {"anyOf": [uuid, {"type": "string", "pattern": f"^{BUILD_ID.pattern}$"}]}

    return Form(shown_identifier, read, schema)


def enum(kind: type[Enum]) -> Form:
    """A member, by its value."""
    members = {member.value: member for member in kind}

    def read(value: JsonValue) -> Enum:
        if not isinstance(value, str) or value not in members:
            raise UnfitError(f"{shown(value)} is none of {', '.join(members)}")
        return members[value]

    def schema() -> dict[str, JsonValue]:
        return {"enum": list(members)}

    return Form(lambda value: value.value, read, schema)


def shown(value: object) -> str:
    """A value as errors show it."""
    try:
        text = repr(value)
    except RecursionError:
        text = "what is nested so deep"
    return text if len(text) < 60 else text[:57] + "…"  # noqa: PLR2004 - one line's share
