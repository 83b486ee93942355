"""``machtrace doctor``: the captures that work here, and how to enable more."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from machtrace.cli.doctor.findings import Answer, Check, Finding, State
from machtrace.cli.options import DocumentFormat, format_option


@click.command()
@click.argument("spec", metavar="[SPEC]", required=False)
@format_option()
def doctor(*, spec: str | None, form: DocumentFormat) -> int:
    """Report what this machine and user can capture, and how to enable more.

    SPEC is a target as for machtrace backtrace; capturing it is tried. The exit status is 0 if SPEC
    can be captured, or without it a process started here.
    """
    from machtrace.cli.console import output
    from machtrace.cli.doctor.findings import write_json, write_text

    answers = [Answer(check, _finding(check)) for check in checks(spec)]
    with output() as sink:
        (write_json if form is DocumentFormat.JSON else write_text)(answers, spec, sink)
    return int(any(answer.fails for answer in answers))


def checks(spec: str | None) -> Sequence[Check]:
    """Return the checks of this system, with a trial of ``spec`` first."""
    from machtrace.cli.doctor import darwin, installation, linux
    from machtrace.cli.doctor.trial import TRIALS, trial_of

    of_system = {"linux": linux.CHECKS, "darwin": darwin.CHECKS}
    return (
        *(TRIALS if spec is None else (trial_of(spec),)),
        *of_system.get(sys.platform, ()),
        *installation.CHECKS,
        *installation.FILE_CHECKS,
    )


def _finding(check: Check) -> Finding:
    try:
        return check.ask()
    except Exception as error:  # noqa: BLE001 - one failing check must not hide the others
        text = f"could not be checked ({type(error).__name__}: {error})"
        return Finding(State.MISSING, text, "report this, with what machtrace doctor printed")
