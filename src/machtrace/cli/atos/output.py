"""Answers as ``atos`` prints them; see ``docs/atos.md`` for the source of each form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from machtrace.cli.atos.arguments import AtosRequest
from machtrace.demangler import apple_style
from machtrace.model.address import ImageOffset
from machtrace.model.symbol import Certainty, InlineFrame, Symbol
from machtrace.model.text import printable

if TYPE_CHECKING:  # the callers have imported it
    from machtrace.symbolizer.image_names import ImageNames, NamedOffset

_GENERATED = "<compiler-generated>"
_FEW = 8
"""Maximum number of addresses that are looked up singly: faster, unless names need an index."""
_NARROW = (1 << 32) - 1
_REMEMBERED = 1 << 18
"""Source locations and functions whose texts are cached; at the limit the cache is cleared."""


class AnswerWriter:
    """Formats the answers for addresses in one image."""

    def __init__(self, image: str, request: AtosRequest) -> None:
        """``image``: its name."""
        self._image = f" (in {printable(image)})"
        self._request = request
        self._frames: dict[int, str | None] = {}
        self._starts: dict[int, tuple[str, int] | None] = {}

    def answers(self, names: ImageNames, offsets: Sequence[int], shown: Sequence[int]) -> list[str]:
        """Return a line for each offset from the image's header; ``shown`` are their addresses."""
        if len(offsets) <= _FEW and not names.needs_index:
            starts = [self._start(names.symbol(ImageOffset(offset))) for offset in offsets]
            return list(map(self._named, offsets, shown, starts))
        if len(self._frames) + len(self._starts) > _REMEMBERED:
            self._frames, self._starts = {}, {}
        rows = zip(offsets, shown, names.find(offsets), strict=True)
        return [self._answer(names, *row) for row in rows]

    def _answer(self, names: ImageNames, offset: int, address: int, named: NamedOffset) -> str:
        function, location = named
        if location >= 0:
            if location not in self._frames:
                self._frames[location] = self._frames_at(names, offset, function)
            frames = self._frames[location]
            if frames is not None:
                return frames
        if function not in self._starts:
            self._starts[function] = self._start(names.function(function))
        return self._named(offset, address, self._starts[function])

    def _named(self, offset: int, address: int, start: tuple[str, int] | None) -> str:
        if start is None:
            return self.ended(unnamed_address(address) + self._image)
        name, begin = start
        return self.ended(f"{name or unnamed_address(address)}{self._image} + {offset - begin}")

    def ended(self, line: str) -> str:
        """Return an answer of one line."""
        return self.block([line])

    def block(self, lines: Sequence[str]) -> str:
        """Return the answer of ``lines``; for ``-i`` the delimiter ends each of them."""
        if not self._request.inline:
            return lines[-1] + "\n"
        end = self._request.delimiter
        return "".join(f"{line}{end}" for line in lines) + "\n"

    def _frames_at(self, names: ImageNames, offset: int, function: int) -> str | None:
        """Return the answer from the debug information; None if that has no line."""
        frames = names.calls(ImageOffset(offset))
        if not frames or frames[-1].location is None:
            return None
        symbol = names.function(function)
        lines = [self.frame(call, None) for call in frames[:-1]]
        lines.append(self.frame(frames[-1], symbol))
        return self.block(lines)

    def frame(self, frame: InlineFrame, symbol: Symbol | None) -> str:
        """Return the line of a call and its source location; ``symbol`` names an unnamed one."""
        name = apple_style(frame.linkage_name, frame.name)
        if not name and symbol is not None:
            name = apple_style(symbol.linkage_name, symbol.name)
        where = frame.location
        text = f"{printable(name or '???')}{self._image}"
        return text if where is None else f"{text} ({self._source(where.path)}:{where.line or 0})"

    def _source(self, path: str) -> str:
        name = path.replace("\\", "/").rpartition("/")[2]
        if name == _GENERATED:
            return f"/{name}"
        return printable(path if self._request.full_path else name)

    def _start(self, symbol: Symbol | None) -> tuple[str, int] | None:
        """Return the function's name, empty if it has none, and its start."""
        if symbol is None:
            return None
        if not symbol.is_named:
            return "", symbol.offset
        name = apple_style(symbol.linkage_name, symbol.name)
        if symbol.certainty is Certainty.STUB:
            name = f"DYLD-STUB$${name}"
        elif self._request.dedup and symbol.aliases:
            name = ", ".join((name, *symbol.aliases))
        return printable(name), symbol.offset


def unnamed_address(address: int) -> str:
    """Return the text of an address without a name: 8 hexadecimal digits, or 16."""
    return f"{address:#018x}" if address > _NARROW else f"{address:#010x}"
