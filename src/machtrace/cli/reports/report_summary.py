"""What became of many reports, on standard error."""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.reports.batches import (
    BatchItem,
    BatchOptions,
    BatchOutcome,
    MissingImages,
)
from machtrace.cli.console import print_error, warn
from machtrace.reports.report_input import none_found
from machtrace.errors import FileAccessError, MachtraceError
from machtrace.model.image import shown_identifier
from machtrace.render.printable import printable

_SHOWN = 10


class RunSummary:
    """Adds up outcomes; keeps none of what was written."""

    def __init__(self, options: BatchOptions, files: Sequence[str]) -> None:
        self._options = options
        self._given = ", ".join(map(printable, files[:_SHOWN]))
        self._errors: list[MachtraceError] = []
        self._missing = MissingImages()
        self._problems: dict[str, None] = {}
        self._only: BatchItem | None = None
        self._files = self._unread = self._reports = self._warned = 0
        self._frames = self._named = self._contradicted = 0

    def add(self, outcome: BatchOutcome) -> None:
        """A batch's."""
        for item in outcome.items:
            self._files += 1
            self._reports += item.reports
            self._warned += bool(item.warnings)
            self._only = item
            if item.error is None:
                continue
            if item.is_named or item.reports or isinstance(item.error, FileAccessError):
                self._errors.append(item.error)
            else:
                self._unread += 1
        self._missing.add(outcome.missing)
        self._problems |= dict.fromkeys(str(one) for one in outcome.problems)
        self._frames += outcome.frames
        self._named += outcome.named
        self._contradicted += outcome.contradicted

    def tell(self) -> int:
        """Say it; the exit status: 1 where a file could not be read or written, or none was."""
        for error in self._errors[:_SHOWN]:
            print_error(error)
        if len(self._errors) > _SHOWN:
            warn(f"{len(self._errors) - _SHOWN} more files could not be read or written")
        if self._files == 1 and self._only is not None:
            self._tell_warnings(self._only)
        if self._options.wants_names and self._reports:
            self._tell_names()
        if self._files == 0:
            warn(none_found("there are no files", self._given))
        elif self._files > 1:
            passed = "1 file was no report"
            if self._unread > 1:
                passed = f"{self._unread} files were no reports"
            rest = f", {passed}" if self._unread else ""
            rest += f", {_counted(self._warned, 'file')} with oddities" if self._warned else ""
            warn(f"{_counted(self._reports, 'report')} of {self._files} files{rest}")
        if self._files and self._unread == self._files:
            warn(none_found("there is no report", self._given))
        return 1 if self._errors or not self._reports else 0

    def _tell_warnings(self, item: BatchItem) -> None:
        name = printable(item.name)
        for text in item.warnings[:_SHOWN]:
            warn(f"{name}: {printable(text)}")
        if len(item.warnings) > _SHOWN:
            warn(f"{name}: {len(item.warnings) - _SHOWN} more oddities")

    def _tell_names(self) -> None:
        said = ""
        if self._contradicted:
            said = f", {self._contradicted} of them otherwise than the report"
        warn(f"{self._named} of {_counted(self._frames, 'frame')} were named{said}")
        for one in self._missing.most_first():
            uuid = "no UUID" if one.image.uuid is None else shown_identifier(one.image.uuid)
            name = printable(one.image.name or one.image.path or "???")
            arch = f" {printable(one.image.arch)}" if one.image.arch else ""
            warn(f"no symbols for {name}{arch} {uuid}: {_counted(one.frames, 'frame')}")
        for problem in list(self._problems)[:_SHOWN]:
            warn(printable(problem))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
