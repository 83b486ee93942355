"""Options and arguments that several commands share.

Each is a decorator for a :mod:`click` command, so that an option has one spelling, one default and
one help text in all commands.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from machtrace.cli.application import PROGRAM, OptionalValue, ProgramCommand
from machtrace.errors import FileAccessError, TargetSpecError
from machtrace.model.options import ONLY, NameOptions, PythonView, WalkOptions
from machtrace.model.quantities import parse_bytes, parse_seconds

STDOUT = "-"
"""The output file that stands for standard output."""

_SELF = "self"
_DEFAULTS = WalkOptions()

_Function = TypeVar("_Function", bound=Callable[..., Any])


class DocumentFormat(StrEnum):
    """How a command's result is printed."""

    TEXT = "text"
    JSON = "json"


def format_option(
    formats: type[StrEnum] = DocumentFormat, *, of_suffix: bool = False
) -> Callable[[_Function], _Function]:
    """Return ``--format`` for an enum of formats; the first one is the default.

    The parameter is called ``form``.

    Args:
        formats: the enum.
        of_suffix: whether the suffix of ``--output`` can choose a format: then it is None if the
            option is not given.
    """
    if of_suffix:
        return click.option(
            *("--format", "-f", "form"),
            type=click.Choice([member.value for member in formats]),
            callback=lambda _context, _parameter, value: None if value is None else formats(value),
            help=f"Output format. Default: that of --output's suffix, else {next(iter(formats))}.",
        )
    return enum_option("--format", "-f", "form", members=formats, help="Output format.")


def enum_option(
    *names: str,
    members: type[StrEnum],
    help: str,  # noqa: A002 - click's name
) -> Callable[[_Function], _Function]:
    """Return an option whose value is a member of an enum; the first member is the default."""
    return click.option(
        *names,
        type=click.Choice([member.value for member in members]),
        callback=lambda _context, _parameter, value: members(value),
        default=next(iter(members)).value,
        show_default=True,
        help=help,
    )


# --- values with units ---


def size_type(*, least: int = 0) -> Callable[[object], int]:
    """Return the type of an option in bytes: ``2G``, ``500 MB``, ``4KiB`` or ``1048576``.

    Units are powers of 1024.
    """

    def parse(text: object) -> int:
        value = parse_bytes(str(text))
        if value is None:
            raise click.BadParameter(f"{text!r} is not a size; write 512K, 10M or 2G")
        if value < least:
            raise click.BadParameter(f"{text!r} is too small; write {least} or more")
        return int(value)

    return parse


def parse_age(text: object) -> float:
    """Parse an age in seconds: ``30d``, ``12h`` or ``2w``; a bare number counts days."""
    return _seconds(text, "d", "an age; write 30d or 12h")


def parse_duration(text: object) -> float:
    """Parse seconds: ``500ms``, ``10s``, ``2m`` or ``inf``; a bare number counts seconds."""
    with suppress(ValueError):
        return float(str(text))  # also inf; what is out of range is refused with its limits
    return _seconds(text, "s", "a duration; write 500ms, 10s or 2m")


def _seconds(text: object, unit: str, wanted: str) -> float:
    value = parse_seconds(str(text), unit)
    if value is None:
        raise click.BadParameter(f"{text!r} is not {wanted}")
    return value


def parse_rate(text: object) -> float:
    """Parse a number of samples a second."""
    try:
        return float(str(text))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a number of samples per second; write 99"
        ) from None


def count_type(most: int = 10**18, *, least: int = 1) -> Callable[[object], int]:
    """Return the type of an option that counts something, from 1 unless stated otherwise."""

    def parse(text: object) -> int:
        digits = str(text).strip()
        number = int(digits) if digits.isdecimal() and len(digits) <= len(str(most)) else -1
        if not least <= number <= most:
            limit = f" to {most}" if most < 10**18 else ""
            raise click.BadParameter(f"{digits!r} is not a whole number from {least}{limit}")
        return number

    return parse


def parse_name(text: object) -> str:
    """Parse the name of a file or folder, which must not be empty."""
    if not str(text):
        raise click.BadParameter("an empty name is no file")
    return str(text)


def parse_path(text: object) -> Path:
    """Parse a path, which must not be empty."""
    return Path(parse_name(text))


# --- completion ---


def complete_files(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Let the shell complete file names."""
    return [CompletionItem(incomplete, type="file")]


def complete_folders(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Let the shell complete names of folders."""
    return [CompletionItem(incomplete, type="dir")]


def complete_words(
    *words: str,
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return the completion of an option that takes one of ``words``, or others."""

    def complete(
        _context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]

    return complete


# --- targets and threads ---


def _target(
    context: click.Context, _parameter: click.Parameter, spec: str | None
) -> str | tuple[str, ...]:
    program: tuple[str, ...] | None = context.meta.get(PROGRAM)
    if program is not None:
        if spec is not None:
            raise click.UsageError(f"pass {spec!r} or a program to start, not both")
        if not program:
            raise click.UsageError("name a program to start after --")
        return program
    if spec is None:
        other = " or -- PROGRAM" if isinstance(context.command, ProgramCommand) else ""
        raise click.UsageError(f"missing argument 'SPEC'{other}")
    if spec == _SELF:
        raise TargetSpecError(
            "self is this very command",
            remedy='pass a process id, or call machtrace.backtraces("self") in the program',
        )
    return spec


def target_argument(
    *, of_running: bool = False, metavar: str = "SPEC"
) -> Callable[[_Function], _Function]:
    """Return the argument ``SPEC``; ``{SPECS}`` in the command's help becomes the forms of specs.

    For a :class:`ProgramCommand` the value is a spec or the words of a program.

    Args:
        of_running: whether only targets that run are listed.
        metavar: the argument in the command's usage.
    """

    def decorate(function: _Function) -> _Function:
        from machtrace.targets.open import spec_forms

        text = function.__doc__ or ""
        function.__doc__ = text.replace("{SPECS}", spec_forms(of_running=of_running))
        return click.argument(
            "spec",
            metavar=metavar,
            required=False,
            callback=_target,
            shell_complete=complete_files,
        )(function)

    return decorate


def _thread_option(*words: str, default: str = "all") -> Callable[[_Function], _Function]:
    return click.option(
        "--thread",
        "-t",
        metavar="THREAD",
        multiple=True,
        default=(default,),
        show_default=True,
        callback=lambda _context, _parameter, choices: choices[0] if len(choices) == 1 else choices,
        shell_complete=complete_words(*words),
        help=f"Threads: {', '.join(words)}, a name, an id, or #N as lldb numbers them; may be "
        "repeated.",
    )


thread_option = _thread_option("all", "main", "crashed")

sampled_thread_option = _thread_option("all", "main")
"""The option of commands whose target runs: no thread has crashed."""
watched_thread_option = _thread_option("all", "main", default="main")

unique_option = click.option(
    "--unique",
    "-u",
    is_flag=True,
    help="Show equal stacks once, with the threads that have them; most threads first.",
)

idle_option = click.option(
    "--idle/--no-idle",
    default=True,
    show_default=True,
    help="Include samples of threads that wait. Without them the profile has what ran, or was "
    "ready to run.",
)

merge_threads_option = click.option(
    "--merge-threads",
    "by_name",
    cls=OptionalValue,
    metavar="[=name]",
    type=click.Choice(["all", "name"]),
    callback=lambda _context, _parameter, value: None if value is None else value == "name",
    is_flag=False,
    flag_value="all",
    help="Merge all threads into one, or with =name those of the same name, such as a pool's.",
)
"""The parameter is whether threads are merged by name; None if they are not merged."""

limit_option = click.option(
    "--limit",
    "-l",
    metavar="N",
    type=count_type(),
    default=_DEFAULTS.limit,
    show_default=True,
    help="Maximum frames per stack: the innermost N. The default keeps both ends of a deeper stack "
    "and drops the middle.",
)

stack_limit_option = click.option(
    "--stack-limit",
    metavar="SIZE",
    type=size_type(least=4096),
    default=f"{_DEFAULTS.stack_limit >> 20}M",
    show_default=True,
    help="Maximum bytes copied of each stack, such as 256K or 64M.",
)

scan_option = click.option(
    "--scan",
    is_flag=True,
    help="Scan stacks for return addresses wherever they would be incomplete. Such frames are "
    "guesses, marked [scan].",
)

# --- names ---


def check_search_paths(paths: Sequence[str]) -> None:
    """Check that every path exists; ``~`` is the home folder.

    Raises:
        FileAccessError: a path does not exist, or cannot be read.
    """
    for path in paths:
        try:
            os.stat(os.path.expanduser(path))  # noqa: PTH111, PTH116 - pathlib comes later
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            raise FileAccessError(path, reason or "cannot be read") from error


search_option = click.option(
    "--search",
    "-s",
    metavar="PATH",
    multiple=True,
    type=parse_name,
    shell_complete=complete_files,
    help="File or folder with images and debug files; may be repeated.",
)

names_option = click.option(
    "--names/--no-names", default=True, show_default=True, help="Look up function names."
)

lines_option = click.option(
    "--lines/--no-lines",
    default=True,
    show_default=True,
    help="Look up source lines and inlined calls.",
)

python_option = click.option(
    "--python",
    metavar="[=only]",
    type=click.Choice(["mixed", ONLY]),
    is_flag=False,
    flag_value="mixed",
    callback=lambda _context, _parameter, view: view if view == ONLY else view is not None,
    help="Show the Python functions of each frame of CPython's loop (3.11 to 3.14), threads' names "
    "and who holds the GIL; with =only nothing else. All threads are suspended together for it.",
)


def name_options(
    *, search: tuple[str, ...], names: bool, lines: bool, python: PythonView
) -> NameOptions:
    """Return the options' value.

    Raises:
        click.UsageError: Python functions are requested without names.
        FileAccessError: a path to search does not exist.
    """
    check_search_paths(search)
    if python is True and not names:
        raise click.UsageError("--python requires --names; --python=only does not")
    return NameOptions(search=search, symbolicate=names, lines=lines, python=python)


# --- files ---

output_option = click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=parse_path,
    shell_complete=complete_files,
    help="Output file; '-' for stdout.",
)

reports_argument = click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=parse_name,
    shell_complete=complete_files,
)

store_option = click.option(
    "--store",
    metavar="PATH",
    type=parse_path,
    shell_complete=complete_folders,
    help="Folder of the store. Default: $MACHTRACE_SYMBOLS, else a folder in your data folder.",
)

# --- messages ---


def _quiet(_context: click.Context, _parameter: click.Parameter, requested: bool) -> None:  # noqa: FBT001 - click's signature
    from machtrace.cli import console

    console.set_quiet(requested)


quiet_option = click.option(
    "--quiet",
    "-q",
    is_flag=True,
    expose_value=False,
    callback=_quiet,
    help="Print errors only: no warnings, summaries or progress.",
)
