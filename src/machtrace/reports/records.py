"""Forms of the model's types: of records by their fields, of tuples by their items."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache, reduce
from operator import or_
from typing import Any, NamedTuple
from uuid import UUID

from machtrace.model.image import BuildId
from machtrace.model.json_value import JsonValue
from machtrace.reports.values import (
    PLAIN,
    Form,
    OpaqueDetails,
    UnfitError,
    details,
    enum,
    identifier,
    items,
    plain,
    shown,
)

_SIMPLE: dict[Any, Form] = {
    **{kind: plain(*words) for kind, words in PLAIN.items()},
    OpaqueDetails: details(),
    UUID | BuildId: identifier(),
}


@cache
def form_of(kind: Any) -> Form:  # noqa: ANN401 - a type, or what typing has for one
    """The form of a type of the model, made once."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _optional(arguments)
    if origin is tuple:
        return _many(arguments)
    if hasattr(kind, "__supertype__"):
        return form_of(kind.__supertype__)
    return enum(kind) if issubclass(kind, Enum) else _record(kind)


def _optional(arguments: tuple[Any, ...]) -> Form:
    # What is left of several kinds has one form for all.
    inner = form_of(reduce(or_, (one for one in arguments if one is not types.NoneType)))

    def write(value: Any) -> JsonValue:  # noqa: ANN401
        return None if value is None else inner.write(value)

    def read(value: JsonValue) -> object:
        return None if value is None else inner.read(value)

    def schema() -> dict[str, JsonValue]:
        return {"anyOf": [inner.schema(), {"type": "null"}]}

    return Form(write, read, schema)


def _many(arguments: tuple[Any, ...]) -> Form:
    if len(arguments) == 2 and arguments[1] is Ellipsis:  # noqa: PLR2004 - tuple[X, ...]
        inner = form_of(arguments[0])

        def read_all(value: JsonValue) -> object:
            return tuple(map(inner.read, items(value)))

        def schema() -> dict[str, JsonValue]:
            return {"type": "array", "items": inner.schema()}

        return Form(lambda value: list(map(inner.write, value)), read_all, schema)
    parts = [form_of(one) for one in arguments]

    def read(value: JsonValue) -> object:
        found = items(value)
        if len(found) != len(parts):
            raise UnfitError(f"{len(found)} items where {len(parts)} belong")
        return tuple(part.read(item) for part, item in zip(parts, found, strict=True))

    def schema_of_parts() -> dict[str, JsonValue]:
        return {
            "type": "array",
            "prefixItems": [part.schema() for part in parts],
            "items": False,
        }

    def write(value: Any) -> JsonValue:  # noqa: ANN401
        return [part.write(item) for part, item in zip(parts, value, strict=True)]

    return Form(write, read, schema_of_parts)


class _Member(NamedTuple):
    name: str
    usual: Any
    """Its default; :data:`_NONE` where it must be given."""
    form: Form


_NONE: Any = object()


def _record(kind: Any) -> Form:  # noqa: ANN401 - a dataclass or a NamedTuple of the model
    members = tuple(_members(kind))
    names = frozenset(member.name for member in members)
    required = frozenset(member.name for member in members if member.usual is _NONE)
    writes = [(name, usual, form.write) for name, usual, form in members]
    reads = {name: form.read for name, _, form in members}

    def write(value: Any) -> JsonValue:  # noqa: ANN401
        found: dict[str, JsonValue] = {}
        for name, usual, write_one in writes:
            one = getattr(value, name)
            if one is not usual and one != usual:
                found[name] = write_one(one)
        return found

    def read(value: JsonValue) -> object:
        if not isinstance(value, dict):
            raise UnfitError(f"{shown(value)} is no object")
        if not names >= value.keys():
            raise UnfitError(f"{shown(next(iter(value.keys() - names)))} is no field of it")
        missing = required - value.keys()
        if missing:
            raise UnfitError(f"{', '.join(sorted(missing))} is missing")
        found = {name: reads[name](one) for name, one in value.items()}
        try:
            return kind(**found)
        except ValueError as error:
            raise UnfitError(str(error)) from None

    def schema() -> dict[str, JsonValue]:
        return {"$ref": f"#/$defs/{kind.__name__}"}

    return Form(write, read, schema)


def _members(kind: Any) -> typing.Iterator[_Member]:  # noqa: ANN401 - see _record
    hints: Mapping[str, Any] = typing.get_type_hints(kind, localns={"Details": OpaqueDetails})
    if dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            usual = field.default
            if usual is dataclasses.MISSING:
                factory = field.default_factory
                usual = _NONE if factory is dataclasses.MISSING else factory()
            yield _Member(field.name, usual, form_of(hints[field.name]))
    else:
        for name in kind._fields:
            usual = kind._field_defaults.get(name, _NONE)
            yield _Member(name, usual, form_of(hints[name]))


def definition(kind: Any) -> dict[str, JsonValue]:  # noqa: ANN401 - see _record
    """What a schema says of a record: its properties, and which of them must be there."""
    members = tuple(_members(kind))
    said: dict[str, JsonValue] = {
        "type": "object",
        "properties": {name: form.schema() for name, _, form in members},
        "additionalProperties": False,
    }
    required: list[JsonValue] = [name for name, usual, _ in members if usual is _NONE]
    return said | {"required": required} if required else said
