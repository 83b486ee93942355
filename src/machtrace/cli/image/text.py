"""``machtrace image`` as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from machtrace.cli.image.description import (
    AddressDescription,
    Facts,
    ImageDescription,
    SymbolDescription,
)
from machtrace.cli.tables import table
from machtrace.frozen import dataclass

_COUNTS = frozenset(
    {
        "bits",
        "symbols",
        "code_symbols",
        "undefined_symbols",
        "debugger_symbols",
        "dynamic_symbols",
        "dynamic_code_symbols",
        "string_table_size",
        "function_starts",
        "ilocalsym",
        "iextdefsym",
        "iundefsym",
    }
)
"""Facts that are counts; other numbers are addresses, offsets or bits."""
_FIRST_WIDTH = 22


@dataclass(frozen=True, slots=True)
class Style:
    """Escape sequences for headings and secondary text."""

    bold: str = ""
    dim: str = ""
    reset: str = ""

    @classmethod
    def of(cls, *, colour: bool) -> Style:
        """Return a terminal's escape sequences, or empty ones without ``colour``."""
        return cls("\x1b[1m", "\x1b[2m", "\x1b[0m") if colour else cls()


def heading(image: ImageDescription, style: Style) -> str:
    """Return the line that identifies an image."""
    where = f" at {image.offset:#x}" if image.offset else ""
    identifier = f"  {image.identifier}" if image.identifier else ""
    return (
        f"{style.bold}{image.arch} {image.type}{style.reset}{identifier}  "
        f"{style.dim}{image.size} bytes{where}{style.reset}"
    )


def overview(image: ImageDescription, style: Style) -> Iterator[str]:
    """Yield the facts of its headers, without the heading."""
    for name, value in image.facts.items():
        text = _value(name, value)
        if text:
            yield f"  {name.replace('_', ' '):<{_FIRST_WIDTH}s} {text}"
    yield f"{style.bold}segments{style.reset}"
    yield from _indented(_segment_table(image))
    if image.commands:
        yield f"{style.bold}load commands{style.reset}"
        rows = [
            (str(index), c.name, f"{c.offset:#x}", str(c.size), _fields(c.fields))
            for index, c in enumerate(image.commands)
        ]
        titles = ("#", "command", "offset", "size", "says")
        yield from _indented(table(titles, rows, right=frozenset({0, 2, 3})))


def segments(image: ImageDescription, style: Style) -> Iterator[str]:
    """Yield the tables of segments and sections."""
    yield from _indented(_segment_table(image))
    rows = [
        (
            segment.name,
            section.name,
            f"{section.address:#x}",
            f"{section.size:#x}",
            f"{section.file_offset:#x}",
            section.kind,
            "code" if section.is_code else "",
        )
        for segment in image.segments
        for section in segment.sections
    ]
    if rows:
        yield f"{style.bold}sections{style.reset}"
        titles = ("segment", "section", "address", "size", "file offset", "type", "")
        yield from _indented(table(titles, rows, right=frozenset({2, 3, 4})))


def _segment_table(image: ImageDescription) -> Iterator[str]:
    titles = ["segment", "address", "memory size", "file offset", "file size", "mapped", "at most"]
    rows = [
        [
            segment.name or "(no name)",
            f"{segment.address:#x}",
            f"{segment.memory_size:#x}",
            f"{segment.file_offset:#x}",
            f"{segment.file_size:#x}",
            segment.protection,
            segment.maximum_protection or "",
        ]
        for segment in image.segments
    ]
    if all(segment.maximum_protection is None for segment in image.segments):
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    return table(titles, rows, right=frozenset({1, 2, 3, 4}))


def symbols(rows: Iterable[SymbolDescription]) -> Iterator[str]:
    """Yield a line for each symbol; columns have fixed widths, since there may be a million."""
    yield f"{'number':>7s}  {'value':<18s}  {'kind':<10s}  {'visible':<8s}  {'where':<22s}  name"
    for row in rows:
        yield (
            f"{row.number:7d}  0x{row.value:016x}  {row.kind:<10s}  {row.visibility:<8s}  "
            f"{row.place:<22s}  {row.name}"
        )


def looked_up(contents: AddressDescription) -> Iterator[str]:
    """Yield the lines for an address."""
    yield f"  address   {contents.address:#x}"
    yield f"  segment   {contents.segment or '(no name)'}  {contents.protection}"
    if contents.section is not None:
        yield f"  section   {contents.section} + {contents.section_offset}"
    offset = (
        "none: zeros in memory" if contents.file_offset is None else f"{contents.file_offset:#x}"
    )
    yield f"  file      {offset}"
    symbol = contents.symbol
    if symbol is None:
        yield "  symbol    none that surely names this address"
    else:
        yield f"  symbol    {symbol.name} + {symbol.offset}"
        if symbol.linkage_name != symbol.name:
            yield f"            in the symbol table: {symbol.linkage_name}"
        for alias in symbol.aliases:
            yield f"            also called: {alias}"
        end = "?" if symbol.size is None else f"{symbol.address + symbol.size:#x}"
        yield f"            {symbol.address:#x} to {end}, {symbol.certainty}"
    if contents.function_start is not None:
        yield f"  function  {contents.function_start:#x} to {contents.function_end:#x}"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _fields(fields: Facts) -> str:
    return "  ".join(
        f"{name} {_value(name, value)}" for name, value in fields.items() if value not in (0, "")
    )


def _value(name: str, value: int | str) -> str:
    if isinstance(value, str):
        return value
    # In loader.h's names a leading n is a number of things.
    return str(value) if name in _COUNTS or name.startswith("n") else f"{value:#x}"
