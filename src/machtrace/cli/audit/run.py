"""``machtrace audit run``: which code got which private data, as the agent recorded it."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from machtrace.cli.application import PROGRAM, ProgramCommand
from machtrace.cli.audit.commands import (
    Language,
    baseline_option,
    evidence_option,
    judged,
    language_option,
    link_map_option,
    rules_option,
)
from machtrace.cli.audit.report import AppFiles, RunFormat, report_calls
from machtrace.cli.options import (
    check_search_paths,
    complete_files,
    format_option,
    parse_duration,
    parse_path,
    quiet_option,
    search_option,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from machtrace.audit.observed.consent import ConsentMarker
    from machtrace.audit.observed.recall import Recall
    from machtrace.audit.observed.recording import Recording
    from machtrace.audit.rules import RuleSet
    from machtrace.reports.spool.spool import Spool

_SPOOL = re.compile(r".+\.spool(?:\.\d+)?")
"""A spool, or an older one of the same process."""


_EMULATED = "emulated:"
_RECORDERS = {
    "gdb://": "machtrace.cli.audit.breakpoints",
    "device://": "machtrace.cli.audit.breakpoints",
    "frida://": "machtrace.cli.audit.frida",
    _EMULATED: "machtrace.cli.audit.emulated",
}
"""By the beginning of a target: the module whose ``record_calls`` records it."""


class LiveOptions(NamedTuple):
    """How a running process is recorded."""

    marker: ConsentMarker | None
    """The moment of consent: a function that is called then is watched, too."""
    search: tuple[str, ...]
    """Files and folders with the process's images."""
    seconds: float
    """For how long at most."""
    quick: bool
    """Whether a process continues before a stack is walked."""
    library: Path | None = None
    """The agent to load; None: the installed one, or the one that the process has."""
    spawn: bool = False
    """Whether Frida starts the program or app that the target names."""


@click.command(cls=ProgramCommand)
@click.argument(
    "targets",
    metavar="SPOOL... | TARGET | -- PROGRAM [ARGS]...",
    nargs=-1,
    shell_complete=complete_files,
)
@rules_option
@click.option(
    "--consent",
    metavar="MOMENT",
    help="When the user consented: call:FUNCTION, mark:TEXT, at:12.5s after the start, or never. "
    "Of PROGRAM also log:TEXT, a line of its output; or key, the return key.",
)
@click.option("--all", "every", is_flag=True, help="Show every stack of a finding, and every rule.")
@click.option(
    "--spools",
    "folder",
    metavar="FOLDER",
    type=parse_path,
    shell_complete=complete_files,
    help="Keep the spools of PROGRAM in this folder.",
)
@click.option(
    "--agent",
    "library",
    metavar="FILE",
    type=parse_path,
    shell_complete=complete_files,
    help="The agent that PROGRAM loads, instead of the one that came with machtrace.",
)
@click.option(
    "--for",
    "seconds",
    type=parse_duration,
    default="inf",
    metavar="TIME",
    help="How long to record TARGET: 60s or 10m. Default: until Ctrl-C, or the process exits.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Continue TARGET before a stack is walked, in one round trip a call instead of two. Outer "
    "frames of a stack that is deeper than the thread's last ones are missing.",
)
@click.option(
    "--spawn",
    is_flag=True,
    help="Start the program or app that a frida:// target names, with the agent in it.",
)
@click.option(
    "--os-report",
    metavar="FILE",
    type=parse_path,
    shell_complete=complete_files,
    help="The device's App Privacy Report, to compare its accesses with the recorded calls.",
)
@click.option("--os-app", metavar="BUNDLE", default="", help="The app in the App Privacy Report.")
@click.option(
    "--static",
    "app",
    metavar="APP",
    type=parse_path,
    shell_complete=complete_files,
    help="The app's files, of the recorded build: state which static library called, also by a "
    "jump, and which calls in its code were reached.",
)
@link_map_option
@baseline_option
@evidence_option
@search_option
@language_option
@quiet_option
@format_option(RunFormat)
@click.pass_context
def run(  # noqa: PLR0913 - one parameter for each option
    context: click.Context,
    *,
    targets: tuple[str, ...],
    rules: str,
    consent: str | None,
    every: bool,
    folder: Path | None,
    library: Path | None,
    seconds: float,
    quick: bool,
    spawn: bool,
    os_report: Path | None,
    os_app: str,
    app: Path | None,
    link_map: Path | None,
    baseline: Path | None,
    evidence: Path | None,
    search: tuple[str, ...],
    lang: Language,
    form: RunFormat,
) -> int:
    """State which libraries called what the rules watch, before and after consent.

    SPOOL is a file that the agent wrote, or a folder of *.spool files. PROGRAM is started with the
    agent in it (Linux): its calls are recorded from the first initialiser on, and those of its
    children. What it prints goes to the standard error stream. TARGET is a process of a debugger's
    stub, gdb://host:port or device://UDID/bundle-id: breakpoints record its calls until Ctrl-C; or
    a process id (Linux) or frida:// target: the agent is loaded into it; or emulated:demo, an app
    with two SDKs that is run here.

    The exit status is 0 if nothing was found, 1 if there are faults or warnings, 2 if some of the
    calls could not be judged. With --baseline, faults and warnings that LAST has do not count.
    """
    from machtrace.audit.observed.consent import parse_consent
    from machtrace.audit.rules import load_rules

    program: tuple[str, ...] | None = context.meta.get(PROGRAM)
    if bool(targets) is (program is not None):
        raise click.UsageError("pass spools, a target, or -- and a program to start")
    if program is not None and not program:
        raise click.UsageError("name a program to start after --")
    if link_map is not None and app is None:
        raise click.UsageError("--link-map needs --static, the app that it is of")

    def judge() -> int:
        check_search_paths(search)
        files = None if app is None else AppFiles(app, link_map)
        loaded = load_rules(rules)
        marker = None if consent is None else parse_consent(consent)
        if program is None:
            live = LiveOptions(marker, search, seconds, quick, library, spawn)
            recording = _recorded(targets, loaded, live)
        else:
            recording, marker = _run_program(program, loaded, marker, folder, library)
        places = search
        if targets and targets[0].startswith(_EMULATED):
            from machtrace.targets.emulator import AUDITED_APP

            files = files or AppFiles(AUDITED_APP / "Demo.app", None)
            places = (*search, str(AUDITED_APP))
        options = places, form, lang, baseline, evidence
        compared = _recall(recording, loaded, os_report, os_app)
        return report_calls(
            recording, loaded, marker, *options, every=every, recall=compared, files=files
        )

    return judged(judge)


def _process_spec(target: str) -> str:
    """Return the target of a process's number; a file of this name is a spool."""
    is_number = target.isascii() and target.isdigit() and not Path(target).exists()
    return f"frida://local/{target}" if is_number else target


def _recorded(targets: tuple[str, ...], rules: RuleSet, live: LiveOptions) -> Recording:
    """Return the calls in spools, or of a running process."""
    from machtrace.audit.observed.recording import recording_of

    spec = _process_spec(targets[0])
    recorders = [module for prefix, module in _RECORDERS.items() if spec.startswith(prefix)]
    if not recorders:
        return recording_of(_read([parse_path(target) for target in targets]), rules)
    if len(targets) > 1:
        raise click.UsageError(f"pass {spec} alone: one process is recorded at a time")
    recording: Recording = import_module(recorders[0]).record_calls(spec, rules, live)
    return recording


def _recall(
    recording: Recording, rules: RuleSet, os_report: Path | None, app: str
) -> Recall | None:
    if os_report is None:
        return None
    from machtrace.audit.observed.os_report import read_os_report
    from machtrace.audit.observed.recall import recall

    return recall(recording, rules, read_os_report(os_report), app)


def _run_program(
    arguments: tuple[str, ...],
    rules: RuleSet,
    marker: ConsentMarker | None,
    folder: Path | None,
    library: Path | None,
) -> tuple[Recording, ConsentMarker | None]:
    """Return the calls of a program, and the marker unless the agent records its state."""
    from dataclasses import replace
    from tempfile import TemporaryDirectory

    from machtrace.audit.observed.consent import MarkerKind
    from machtrace.audit.observed.process_calls import ABSENT, watched_functions
    from machtrace.audit.observed.recording import recording_of
    from machtrace.cli.console import warn_of_end
    from machtrace.targets.linux.agent import AgentProgram

    kind = None if marker is None else marker.kind
    text = "" if marker is None else marker.text
    with TemporaryDirectory(prefix="machtrace-") as temporary:
        place = Path(temporary) if folder is None else folder
        place.mkdir(parents=True, exist_ok=True)
        observed = AgentProgram(
            arguments,
            watched_functions(rules),
            place,
            consent=text if kind is MarkerKind.CALL else None,
            library=library,
            line=text if kind is MarkerKind.LOG else None,
            key=kind is MarkerKind.KEY,
        )
        with observed.program as running, running.passing_signals():
            running.run()
            status = running.wait()
        warn_of_end(arguments[0], status)
        states: set[int] = set()

        def spools() -> Iterator[Spool]:
            for spool in _read(observed.spools()):
                states.update(row.state for row in spool.rules if row.symbol == text)
                yield spool

        recording = recording_of(spools(), rules, from_start=True, marks=observed.marks)
    if kind is not MarkerKind.CALL:
        return recording, marker
    if states == {ABSENT}:
        problem = f"nothing defines {text}, which gives consent"
        recording = replace(recording, problems=(*recording.problems, problem))
    return recording, None


def spools_in(folder: Path) -> list[Path]:
    """Return the spools below a folder.

    Raises:
        FileAccessError: there is none.
    """
    from machtrace.errors import FileAccessError

    files = [each for each in folder.rglob("*.spool*") if _SPOOL.fullmatch(each.name)]
    if not files:
        raise FileAccessError(str(folder), "no *.spool in this folder")
    return sorted(files)


def _read(paths: Sequence[Path]) -> Iterator[Spool]:
    from machtrace.cli.progress import progress_bar
    from machtrace.reports.spool.spool import Spool

    files: list[Path] = []
    for path in paths:
        files += spools_in(path) if path.is_dir() else [path]
    with progress_bar(len(files), unit="files") as progress:
        for file in files:
            yield Spool.read(file)
            progress.advance(1)
