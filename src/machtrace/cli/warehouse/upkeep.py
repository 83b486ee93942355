"""``machtrace warehouse compact``, ``check``, ``delete`` and ``retry``: upkeep."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from machtrace.cli.options import DocumentFormat, format_option, parse_age
from machtrace.cli.tables import readable_size, write_json
from machtrace.cli.warehouse.commands import folder_argument, open_warehouse
from machtrace.model.text import counted

if TYPE_CHECKING:
    from machtrace.warehouse.upkeep.deletion import Deleted

PROBLEMS = 1
"""The exit status of ``check`` if something is damaged."""
_NANOSECONDS = 10**9


raw_age_option = click.option(
    "--raw-age",
    metavar="AGE",
    type=parse_age,
    help="Delete bytes of reports that came before, such as 30d; stacks stay.",
)
report_age_option = click.option(
    "--report-age",
    metavar="AGE",
    type=parse_age,
    help="Delete reports that came before, such as 400d.",
)


trust_clock_option = click.option(
    "--trust-clock",
    is_flag=True,
    help="Delete by age even if that is more than half, or nothing came for a month until now.",
)


def parse_date(text: object) -> int:
    """Return ns since 1970 of a date, such as 2026-11-23 or 2026-11-23T10:00Z; UTC by default."""
    try:
        date = datetime.fromisoformat(str(text))
    except ValueError:
        raise click.BadParameter("use a date such as 2026-11-23") from None
    aware = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return int(aware.timestamp()) * _NANOSECONDS


@click.command()
@folder_argument
@raw_age_option
@report_age_option
@trust_clock_option
@format_option()
def compact(
    *,
    folder: Path,
    raw_age: float | None,
    report_age: float | None,
    trust_clock: bool,
    form: DocumentFormat,
) -> None:
    """Join small segments into large ones, and remove what is old.

    No row changes but those of reports that --report-age selects, which are deleted with their
    bytes. --raw-age deletes the bytes of reports alone: their stacks stay.

    Nothing is deleted if the clock of this machine may be wrong: nothing was received for more than
    30 days between what is too old and now, or more than half is too old.
    """
    from machtrace.cli.console import output
    from machtrace.warehouse.upkeep.deletion import store_trusted_clock

    now = time.time_ns()
    with open_warehouse(folder) as warehouse:
        before = sum(row.bytes for row in warehouse.segments)
        deleted = None
        if raw_age is not None or report_age is not None:
            deleted = warehouse.expire(
                reports=_since(now, report_age),
                raw=_since(now, raw_age),
                clock=None if trust_clock else now,
            )
            if trust_clock:
                store_trusted_clock(folder, now)
        replaced = warehouse.compact()
        after = sum(row.bytes for row in warehouse.segments)
        number = len(warehouse.segments)
    with output():
        if form is DocumentFormat.JSON:
            facts = {"replaced": replaced, "segments": number, "bytes": after}
            write_json(facts | ({} if deleted is None else {"deleted": deleted._asdict()}))
            return
        if deleted is not None:
            _write_deleted(deleted)
        sys.stdout.write(
            f"{counted(replaced, 'segment')} replaced; now {counted(number, 'segment')} of "
            f"{readable_size(after)}, before {readable_size(before)}\n"
        )


@click.command()
@folder_argument
@format_option()
def check(*, folder: Path, form: DocumentFormat) -> int:
    """Read everything, and list what is damaged and what is in quarantine.

    The exit status is 1 if something is damaged.
    """
    from machtrace.cli.console import output

    with open_warehouse(folder) as warehouse:
        problems = list(warehouse.check())
        segments, quarantined = warehouse.segments, warehouse.quarantined
    with output():
        reports = sum(row.reports for row in segments)
        stacks = sum(row.occurrences for row in segments)
        if form is DocumentFormat.JSON:
            document = {"segments": len(segments), "reports": reports, "stacks": stacks}
            damaged = [problem._asdict() for problem in problems]
            poison = [row._asdict() for row in quarantined]
            write_json({**document, "problems": damaged, "quarantined": poison})
        else:
            for problem in problems:
                sys.stdout.write(f"damaged: {problem.where}: {problem.text}\n")
            for row in quarantined:
                place = f"{row.name} ({row.log} at {row.offset})"
                sys.stdout.write(f"in quarantine: {place}: {row.reason}\n")
            sys.stdout.write(
                f"{counted(len(segments), 'segment')}: {counted(reports, 'report')}, "
                f"{counted(stacks, 'stack')}, {counted(len(problems), 'problem')}\n"
            )
    return PROBLEMS if problems else 0


@click.command()
@folder_argument
@click.option("--device", metavar="KEY", help="Those of this device.")
@click.option("--report", metavar="KEY", help="The one with this key.")
@click.option(
    "--uncertain",
    is_flag=True,
    help="With --device: those, too, that may be another device's, since their hash is short.",
)
@click.option("--before", metavar="DATE", type=parse_date, help="Those that came before a date.")
@format_option()
def delete(
    *,
    folder: Path,
    device: str | None,
    report: str | None,
    before: int | None,
    uncertain: bool,
    form: DocumentFormat,
) -> None:
    """Delete reports, and their bytes, for good.

    The keys of devices and reports are columns of the view reports; that of a report is printed in
    hexadecimal. Where a file that was received has reports of others as well, these lose the file,
    and no stack.
    """
    from machtrace.cli.console import output

    if [device, report, before].count(None) != 2:  # noqa: PLR2004 - all but one
        raise click.UsageError("pass one of --device, --report and --before")
    with open_warehouse(folder) as warehouse:
        if device is not None:
            deleted = warehouse.delete_device(device, uncertain=uncertain)
        elif report is not None:
            deleted = warehouse.delete_report(report)
        else:
            deleted = warehouse.expire(reports=before)
        warehouse.regroup()
    with output():
        if form is DocumentFormat.JSON:
            write_json(deleted._asdict())
        else:
            _write_deleted(deleted)


@click.command()
@folder_argument
@format_option()
def retry(*, folder: Path, form: DocumentFormat) -> int:
    """Read the records in quarantine again, as after an upgrade.

    Those that still cannot be read are listed, with the reasons; the exit status is 1 then.
    """
    from machtrace.cli.console import output

    with open_warehouse(folder) as warehouse:
        added = warehouse.retry()
        if added.reports:
            warehouse.regroup()
        quarantined = warehouse.quarantined
    with output():
        if form is DocumentFormat.JSON:
            rows = [row._asdict() for row in quarantined]
            write_json({**added._asdict(), "quarantined": rows})
        else:
            for row in quarantined:
                place = f"{row.name} ({row.log} at {row.offset})"
                sys.stdout.write(f"in quarantine: {place}: {row.reason}\n")
            sys.stdout.write(
                f"{counted(added.reports, 'report')} added, "
                f"{counted(len(quarantined), 'record')} in quarantine\n"
            )
    return 1 if quarantined else 0


def _since(now: int, age: float | None) -> int | None:
    return None if age is None else now - int(age * _NANOSECONDS)


def _write_deleted(deleted: Deleted) -> None:
    sys.stdout.write(
        f"{counted(deleted.reports, 'report')} deleted, and the bytes of "
        f"{counted(deleted.records, 'record')}\n"
    )
