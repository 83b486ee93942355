"""The lines of a text that was copied out of gdb, as they were before a terminal wrapped them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from machtrace.reports.backtraces.frame_lines import LONGEST_LINE
from machtrace.reports.backtraces.log_lines import log_lines

_MARK = re.compile(r"([ \t]*+)#[0-9]{1,9}[ \t]++(?:0x|<signal|[^ ]++ \()")
_WRAPPED = re.compile(r"(?: {3,4}|\t)\S.*")
_WHOLE = re.compile(r"(?:\)|:[0-9]{1,9})\Z")
"""How a frame ends: what stands below it with a tab is of its own, if it is no place."""
_PLACES = ("\tat ", "\tfrom ", "\t(")
_LINE_DIGITS = 10
_LONGEST_QUESTION = 256
_PAGER = re.compile(r"--+Type <(?:return|RET)> .*--")
"""What gdb asks where the terminal is full, also in the middle of a frame."""
_FRAME_START = re.compile(r"#[0-9]{1,9}[ \t]+(?:0x[0-9a-fA-F]{1,16} in(?: |\Z)|<signal|\S.* \()")


def joined_lines(text: str) -> Iterator[str]:
    """The lines; one that gdb wrapped, at the width of its terminal, is one again."""
    kept = ""
    for line in log_lines(text, _MARK):
        if kept[:1] == "#" and _PAGER.fullmatch(line[:_LONGEST_QUESTION]) is not None:
            yield line
            continue
        if kept[:1] == "#" and len(kept) + len(line) <= LONGEST_LINE and _goes_on(kept, line):
            kept += " " + line.lstrip()
            continue
        if kept:
            yield kept
        kept = line
    if kept:
        yield kept


def _goes_on(kept: str, line: str) -> bool:
    """Whether a line is more of the one before it."""
    if _WRAPPED.fullmatch(line) is None or _FRAME_START.match(kept) is None:
        return False
    is_whole = _WHOLE.search(kept, max(0, len(kept) - _LINE_DIGITS)) is not None
    return line[0] == " " or not is_whole or line.startswith(_PLACES)
