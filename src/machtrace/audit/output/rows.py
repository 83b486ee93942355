"""Call sites as rows, for spreadsheets."""

from __future__ import annotations

import csv
from typing import TextIO

from machtrace.audit.findings import AuditReport

COLUMNS = (
    "library",
    "library_evidence",
    "image",
    "uuid",
    "category",
    "watch",
    "certainty",
    "evidence",
    "function",
    "offset",
    "return_offset",
)


def write_csv(report: AuditReport, sink: TextIO, language: str = "en") -> None:
    """Write a row for each call site; offsets are hexadecimal, from the image's header."""
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(COLUMNS)
    for image in report.app.images:
        for site in image.scan.sites:
            attribution = image.attribution(site)
            after = "" if site.return_offset is None else f"{site.return_offset:#x}"
            writer.writerow(
                (
                    attribution.library,
                    attribution.evidence.value,
                    image.path,
                    image.uuid,
                    site.rule.category_in(language),
                    site.rule.watch,
                    site.certainty.value,
                    site.evidence,
                    _safe(site.function),
                    f"{site.offset:#x}",
                    after,
                )
            )


def _safe(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula: names of methods begin with a sign."""
    return f"'{text}" if text[:1] in "=+-@" else text
