"""The parts of a text, line by line: labels, sections, threads, and their order."""

from __future__ import annotations

from collections.abc import Iterator

from machtrace.reports.crash.header import LABEL, LONGEST_LABEL_LINE
from machtrace.reports.crash.layouts import (
    AFTER,
    CALL_GRAPH,
    ENDS,
    IMAGES,
    LAST_EXCEPTION,
    OTHERS,
    SECTIONS,
    STATE,
    THREADS,
)
from machtrace.reports.crash.threads import ThreadSections

END = "EOF"
"""The last line of iOS texts."""
_PARTS = frozenset({LAST_EXCEPTION, THREADS, STATE, IMAGES, CALL_GRAPH, OTHERS})
_MOST_LABELS = 4096
"""Maximum labels of a text; further ones are stored as lines of the last."""
_PROFILE = "Model"
"""The first label of a Mac's profile, after all sections."""


class TextParts:
    """Collects all lines of a text except images."""

    def __init__(self, threads: ThreadSections) -> None:
        self._threads = threads
        self._items: dict[str, list[list[str]]] = {}
        self._label: str | None = None
        self._last = ""
        self._in_section = False
        self._blanks = 0
        self._is_after_threads = False
        self._order: list[str] = []
        self._seen: set[str] = set()

    def read(self, line: str) -> None:
        """Read the next line."""
        if not line or line.isspace():
            self._threads.end()
            self._blanks += 1
            return
        if line.startswith("Thread ") and (part := self._threads.begin(line)) is not None:
            self._begin(part, is_part=True)
            self._is_after_threads = True
        elif line.startswith(LAST_EXCEPTION + ":"):
            self._threads.begin_exception()
            self._begin(LAST_EXCEPTION, is_part=True)
        elif not self._threads.add(line):
            self._read_label(line)

    def images(self) -> None:
        """Record the position of the images."""
        self._threads.end()
        self._begin(IMAGES, is_part=True)
        self._is_after_threads = True

    def _read_label(self, line: str) -> None:
        match = LABEL.fullmatch(line.rstrip()) if len(line) < LONGEST_LABEL_LINE else None
        if (
            match is None
            or match["label"] in _PARTS
            or (len(self._items) >= _MOST_LABELS and match["label"] not in self._items)
            or (self._in_section and not self._ends_section(match["label"]))
        ):
            self._continue(line)
            return
        label, value = match["label"], match["value"] or ""
        if value and self._threads.fault(label, value):
            return
        self._begin(label, is_part=False)
        self._items.setdefault(label, []).append([value])
        self._in_section = not value or label in SECTIONS or self._is_after_threads

    def _ends_section(self, label: str) -> bool:
        if label in SECTIONS or label.startswith("Application Specific Backtrace "):
            return True
        if self._is_after_threads:
            return label == _PROFILE and self._blanks > 0 and self._label != _PROFILE
        return label in ENDS and (self._blanks > 0 or self._label == "VM Region Info")

    def _continue(self, line: str) -> None:
        """Read a line that continues the part before it, or stands alone."""
        if line.rstrip() == END:
            return
        if self._label is None or (self._blanks and not self._in_section):
            label = AFTER + (self._last or "nothing")
            self._begin(label, is_part=False)
            self._items.setdefault(label, []).append([line])
            self._in_section = True
            return
        item = self._items[self._label][-1]
        item += [""] * self._blanks
        self._blanks = 0
        item.append(line)

    def _begin(self, label: str, *, is_part: bool) -> None:
        if label not in self._seen:  # a repeated label is written at its first position
            self._order += [""] if self._blanks and self._order else []
            self._order.append(label)
            self._seen.add(label)
        self._blanks = 0
        self._label = None if is_part else label
        if not label.startswith(AFTER):
            self._last = label
        self._in_section = False

    # --- results ---

    def items(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each label with its occurrences: lists of lines."""
        for label, items in self._items.items():
            yield label, ["\n".join(lines) for lines in items]

    @property
    def order(self) -> list[str]:
        """The labels and parts; empty texts for the empty lines between them."""
        return self._order
