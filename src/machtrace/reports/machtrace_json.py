"""Reports as JSON: the whole model, and nothing else.

The model's types are the schema: a field's JSON follows from its type, and a field with its
default value is omitted. The published schema (``docs/report.schema.json``, JSON Schema 2020-12)
is generated from the same types.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache, reduce
from math import isfinite
from operator import or_
from typing import Any, NamedTuple
from uuid import UUID

from machtrace.errors import FormatError
from machtrace.model.image import BuildId, shown_identifier
from machtrace.model.incident.facts import (
    AppliedRule,
    Culprit,
    HostLoad,
    LockOwner,
    SeriesPoint,
    TimeRange,
    WaitsFor,
    WatchedThread,
    WatcherCost,
    WatchFacts,
)
from machtrace.model.report import (
    Incident,
    JsonValue,
    LanguageException,
    Report,
    ReportedException,
    ReportedFrame,
    ReportedImage,
    ReportedProcess,
    ReportedRegister,
    ReportedRegisters,
    ReportedSymbol,
    ReportedSystem,
    ReportedTask,
    ReportedTermination,
    ReportedThread,
    SampledNode,
    SampledTree,
)
from machtrace.model.symbol import SourceLocation
from machtrace.reports.images import BUILD_ID, build_id
from machtrace.reports.json_writer import dumps
from machtrace.reports.source import ReportSource


class UnfitError(ValueError):
    """A JSON value does not fit its field."""


class Form(NamedTuple):
    """A type's reader, writer and schema."""

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
    """Return the form of a string, a number or a boolean."""

    def read(value: JsonValue) -> object:
        if type(value) is not kind:
            raise UnfitError(f"{shown(value)} is not of type {name}")
        return value

    return Form(_same, read, lambda: {"type": name})


def _same(value: Any) -> JsonValue:  # noqa: ANN401 - as JSON has it already
    return value  # type: ignore[no-any-return]


def number() -> Form:
    """Return the form of a finite number, an integer or not."""

    def read(value: JsonValue) -> float:
        if type(value) not in (int, float) or not isfinite(value):  # type: ignore[arg-type]
            raise UnfitError(f"{shown(value)} is not a finite number")
        return value  # type: ignore[return-value]

    return Form(_same, read, lambda: {"type": "number"})


class OpaqueDetails:
    """Stands for :data:`Details` and other aliases of large types."""


def details() -> Form:
    """Return the form of an object that is stored as it is."""

    def read(value: JsonValue) -> JsonValue:
        if not isinstance(value, dict):
            raise UnfitError(f"{shown(value)} is not an object")
        return value

    return Form(dict, read, lambda: {"type": "object"})


def items(value: JsonValue) -> list[JsonValue]:
    """Return the items of a list."""
    if not isinstance(value, list):
        raise UnfitError(f"{shown(value)} is not a list")
    return value


def identifier() -> Form:
    """Return the form of a UUID in capitals with dashes, or a build-id in lower case without."""

    def read(value: JsonValue) -> UUID | BuildId:
        try:
            if isinstance(value, str) and (identifier := build_id(value)) is not None:
                return identifier
            return UUID(value)  # type: ignore[arg-type]  # what is no text is refused as well
        except (ValueError, TypeError, AttributeError):
            raise UnfitError(f"{shown(value)} is neither a UUID nor a build-id") from None

    def schema() -> dict[str, JsonValue]:
        uuid: JsonValue = {"type": "string", "format": "uuid"}
        return {"anyOf": [uuid, {"type": "string", "pattern": f"^{BUILD_ID.pattern}$"}]}

    return Form(shown_identifier, read, schema)


def enum(kind: type[Enum]) -> Form:
    """Return the form of an enum's members, by value."""
    members = {member.value: member for member in kind}

    def read(value: JsonValue) -> Enum:
        if not isinstance(value, str) or value not in members:
            raise UnfitError(f"{shown(value)} is not one of {', '.join(members)}")
        return members[value]

    def schema() -> dict[str, JsonValue]:
        return {"enum": list(members)}

    return Form(lambda value: value.value, read, schema)


def shown(value: object) -> str:
    """Return a value as errors show it."""
    try:
        text = repr(value)
    except RecursionError:
        text = "deeply nested JSON"
    return text if len(text) < 60 else text[:57] + "…"  # noqa: PLR2004 - one line's share


_SIMPLE: dict[Any, Form] = {
    **{kind: plain(*words) for kind, words in PLAIN.items()},
    float: number(),
    OpaqueDetails: details(),
    UUID | BuildId: identifier(),
}


@cache
def form_of(kind: Any) -> Form:  # noqa: ANN401 - a type, or what typing has for one
    """Return the form of a type of the model; cached."""
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
    # One form serves for all kinds but None.
    inner = form_of(
        reduce(or_, (argument for argument in arguments if argument is not types.NoneType))
    )

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
    parts = [form_of(argument) for argument in arguments]

    def read(value: JsonValue) -> object:
        values = items(value)
        if len(values) != len(parts):
            raise UnfitError(f"{len(values)} items instead of {len(parts)}")
        return tuple(part.read(item) for part, item in zip(parts, values, strict=True))

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
    """Its default; :data:`_NONE` if it is required."""
    form: Form


_NONE: Any = object()


def _record(kind: Any) -> Form:  # noqa: ANN401 - a dataclass or a NamedTuple of the model
    members = tuple(_members(kind))
    names = frozenset(member.name for member in members)
    required = frozenset(member.name for member in members if member.usual is _NONE)
    writes = [(name, usual, form.write) for name, usual, form in members]
    reads = {name: form.read for name, _, form in members}

    def write(value: Any) -> JsonValue:  # noqa: ANN401
        entries: dict[str, JsonValue] = {}
        for name, usual, write_one in writes:
            field_value = getattr(value, name)
            if field_value is not usual and field_value != usual:
                entries[name] = write_one(field_value)
        return entries

    def read(value: JsonValue) -> object:
        if not isinstance(value, dict):
            raise UnfitError(f"{shown(value)} is not an object")
        if not names >= value.keys():
            raise UnfitError(f"{shown(next(iter(value.keys() - names)))} is not a field of it")
        missing = required - value.keys()
        if missing:
            raise UnfitError(f"{', '.join(sorted(missing))} is missing")
        fields = {name: reads[name](one) for name, one in value.items()}
        try:
            return kind(**fields)
        except ValueError as error:
            raise UnfitError(str(error)) from None

    def schema() -> dict[str, JsonValue]:
        return {"$ref": f"#/$defs/{kind.__name__}"}

    return Form(write, read, schema)


def _members(kind: Any) -> typing.Iterator[_Member]:  # noqa: ANN401 - see _record
    opaque = {"Details": OpaqueDetails, "Evidence": OpaqueDetails}
    hints: Mapping[str, Any] = typing.get_type_hints(kind, localns=opaque)
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
    """Return a record's schema: its properties, and which are required."""
    members = tuple(_members(kind))
    schema: dict[str, JsonValue] = {
        "type": "object",
        "properties": {name: form.schema() for name, _, form in members},
        "additionalProperties": False,
    }
    required: list[JsonValue] = [name for name, usual, _ in members if usual is _NONE]
    return schema | {"required": required} if required else schema


REPORT_SCHEMA = 1
"""Raised when a reader of the old form would misread the new one."""

_VERSION = "report_schema"


def reports_json(reports: Sequence[Report]) -> str:
    """Return the document's text, in ASCII, a line for each report.

    An undecodable byte of a report is a lone surrogate in a string, escaped as in JSON.
    """
    write = form_of(Report).write
    lines = ",\n".join(dumps(write(report)) for report in reports)
    return f'{{"{_VERSION}": {REPORT_SCHEMA}, "reports": [\n{lines}\n]}}\n'


def recognises(source: ReportSource) -> bool:
    """Return whether it has the schema's version."""
    return isinstance(source.value, dict) and _VERSION in source.value


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return the reports, equal to the written ones.

    Raises:
        FormatError: the schema is unknown, or a value violates it.
    """
    value = source.value
    version = value.get(_VERSION) if isinstance(value, dict) else None
    if version != REPORT_SCHEMA or not isinstance(value, dict):
        raise FormatError(
            f"schema {shown(version)}",
            source=source.name,
            offset=0,
            remedy=f"read it with a newer machtrace; this one reads {REPORT_SCHEMA}",
        )
    return tuple(
        _report(one, f"report {number}", source)
        for number, one in enumerate(_reports(value, source), 1)
    )


def _reports(value: dict[str, JsonValue], source: ReportSource) -> list[JsonValue]:
    reports = value.get("reports")
    if not isinstance(reports, list):
        raise source.error("reports is not a list")
    return reports


def _report(value: JsonValue, which: str, source: ReportSource) -> Report:
    try:
        report = form_of(Report).read(value)
    except UnfitError as error:
        raise source.error(f"{which}: {error}") from error
    assert isinstance(report, Report)  # noqa: S101 - for the type checker: it is Report's form
    return report


_RECORDS: tuple[Any, ...] = (
    *(Report, ReportedTask, Incident, ReportedProcess, ReportedSystem, ReportedException),
    *(ReportedTermination, LanguageException, ReportedThread, ReportedRegisters, ReportedRegister),
    *(ReportedFrame, ReportedSymbol, SourceLocation, ReportedImage, SampledTree, SampledNode),
    *(WatchFacts, TimeRange, WatchedThread, Culprit, WaitsFor, LockOwner, HostLoad, SeriesPoint),
    *(WatcherCost, AppliedRule),
)


def schema_text() -> str:
    """Return the schema, indented."""
    schema: dict[str, JsonValue] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Reports of machtrace",
        "type": "object",
        "properties": {
            "report_schema": {"const": REPORT_SCHEMA},
            "reports": {"type": "array", "items": {"$ref": "#/$defs/Report"}},
        },
        "required": ["report_schema", "reports"],
        "$defs": {kind.__name__: definition(kind) for kind in _RECORDS},
    }
    return json.dumps(schema, indent=2) + "\n"
