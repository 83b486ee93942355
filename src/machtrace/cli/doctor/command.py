"""``machtrace doctor``: what can be captured here, and what to change so that more can."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from machtrace.cli.doctor.findings import Answer, Check, Finding, State


class DoctorFormat(StrEnum):
    """How findings can be written."""

    TEXT = "text"
    JSON = "json"


def doctor(
    spec: Annotated[
        str | None,
        typer.Argument(
            metavar="[SPEC]",
            help="What is to be captured, as for machtrace backtrace; it is really tried.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[  # noqa: A002 - the option's name
        DoctorFormat, typer.Option(help="How to write what was found.")
    ] = DoctorFormat.TEXT,
) -> None:
    """Say what this machine and user can capture, and what to change.

    The exit status is 0 where SPEC, or without it a process started here, can be captured.
    """
    from machtrace.cli.console import output
    from machtrace.cli.doctor.findings import write_json, write_text

    answers = [Answer(check, _asked(check)) for check in checks(spec)]
    with output() as sink:
        (write_json if format is DoctorFormat.JSON else write_text)(answers, spec, sink)
    if any(answer.fails for answer in answers):
        raise typer.Exit(1)


def checks(spec: str | None) -> Sequence[Check]:
    """Those of this system, with ``spec`` tried first."""
    from machtrace.cli.doctor import darwin, installation, linux
    from machtrace.cli.doctor.trial import TRIALS, trial_of

    of_system = {"linux": linux.CHECKS, "darwin": darwin.CHECKS}
    return (
        *(TRIALS if spec is None else (trial_of(spec),)),
        *of_system.get(sys.platform, ()),
        *installation.CHECKS,
        *installation.FILE_CHECKS,
    )


def _asked(check: Check) -> Finding:
    try:
        return check.ask()
    except Exception as error:  # noqa: BLE001 - what is ill must not keep the doctor from the rest
        text = f"could not be checked ({type(error).__name__}: {error})"
        return Finding(State.MISSING, text, "report this, with what machtrace doctor printed")
