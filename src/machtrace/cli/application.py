"""The commands, put together: a command's module is imported when the command runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

import click
import click.shell_completion
from click.shell_completion import CompletionItem


class LazyCommand(NamedTuple):
    """A command, without its module."""

    home: str
    """The module and name of the :class:`click.Command`."""
    summary: str
    """The first sentence of its help."""


class LazyGroup(click.Group):
    """A group of commands that are imported when they run; listing them imports none."""

    lazy: dict[str, LazyCommand]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the table."""
        del ctx
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        del ctx
        if cmd_name not in self.lazy:
            return None
        module, _, name = self.lazy[cmd_name].home.partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands from the table, and options."""
        return [
            *(
                CompletionItem(name, help=command.summary)
                for name, command in self.lazy.items()
                if name.startswith(incomplete)
            ),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in self.lazy.items()])


# --- options and arguments that click does not have ---


class OptionalValue(click.Option):
    """An option whose value is optional and follows an equals sign: ``--merge-threads=name``.

    Its ``flag_value`` is the value if there is none; its command is an
    :class:`OptionalValueCommand`.
    """

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option as it is written, and its help."""
        record = super().get_help_record(ctx)
        return None if record is None else (record[0].replace(" [=", "[="), record[1])


class OptionalValueCommand(click.Command):
    """A command with options whose value is optional; the word after one is the next argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give options without a value their ``flag_value``."""
        values = {
            name: option.flag_value
            for option in self.params
            if isinstance(option, OptionalValue)
            for name in option.opts
        }
        end = args.index("--") if "--" in args else len(args)
        words = [f"{word}={values[word]}" if word in values else word for word in args[:end]]
        return super().parse_args(ctx, words + args[end:])


class ProgramCommand(OptionalValueCommand):
    """A command for which the words after ``--`` are a program to start, instead of SPEC."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the program's words away, so that its options are not parsed."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[PROGRAM] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


PROGRAM = "machtrace.program"
"""The key of a :class:`ProgramCommand`'s program in its context."""


def lazy_group(
    name: str, summary: str, commands: dict[str, LazyCommand], *parameters: click.Parameter
) -> LazyGroup:
    """Return a group of ``commands`` that shows its help if none is named."""
    group = LazyGroup(
        name,
        help=summary,
        params=list(parameters),
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    group.lazy = commands
    return group


_OVERVIEW = """\
machtrace shows the call stack of any thread, on Apple platforms and beyond.

  machtrace backtrace PID         the stacks of a process, a core file or a gdb-remote stub
  machtrace sample PID            where a process spends its time
  machtrace symbolicate REPORT    a crash report or hang with names and source lines

machtrace --help lists all commands, machtrace COMMAND --help the options of one. machtrace demo
shows stacks without a process of yours, machtrace doctor what can be captured on this machine.
"""


def run(words: Sequence[str]) -> int:
    """Run the command that ``words`` name, and return the exit status.

    Raises:
        MachtraceError: the command failed.
    """
    from machtrace.cli.console import print_message

    if not words:
        sys.stdout.write(_OVERVIEW)
        return 0
    try:
        with app.make_context("machtrace", list(words)) as context:
            status: int | None = app.invoke(context)
            return status or 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        sys.stdout.write(f"{error.format_message()}\n")
        return error.exit_code
    except click.ClickException as error:
        message = error.format_message().removesuffix(".")
        path = "machtrace"
        if isinstance(error, click.UsageError) and error.ctx is not None:
            path = error.ctx.command_path
        print_message(message[:1].lower() + message[1:], hint=f"see {path} --help")
        return error.exit_code


COMPLETION = "_MACHTRACE_COMPLETE"
"""The environment variable by which a shell's script requests completions."""


def complete(instruction: str) -> int:
    """Print the completions that a shell requests, and return the exit status."""
    return click.shell_completion.shell_complete(app, {}, "machtrace", COMPLETION, instruction)


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
def completion(*, shell: str) -> int:
    """Print the script that completes commands, options and formats in a shell.

    SHELL is bash, zsh or fish. Load the script when the shell starts: write
    eval "$(machtrace completion bash)" into ~/.bashrc, with zsh into ~/.zshrc, or the script of
    fish to ~/.config/fish/completions/machtrace.fish.
    """
    kind = click.shell_completion.get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"this version of click does not support {shell}")
    script = kind(app, {}, "machtrace", COMPLETION)
    sys.stdout.write(f"{(script.source_template % script.source_vars()).strip()}\n")
    return 0


def _show_version(context: click.Context, _parameter: click.Parameter, requested: bool) -> None:  # noqa: FBT001 - click's signature
    if not requested:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("machtrace")
    except PackageNotFoundError:
        number = "from a source tree"
    sys.stdout.write(f"machtrace {number}\n")
    context.exit()


@click.command(
    "atos",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
)
@click.argument(
    "words",
    nargs=-1,
    type=click.UNPROCESSED,
    shell_complete=lambda _context, _parameter, word: [CompletionItem(word, type="file")],
)
def atos(words: tuple[str, ...]) -> int:
    """Name addresses, with the options and output of Apple's atos; see atos -h."""
    from machtrace.cli.atos.command import run  # main() starts it without importing this module

    return run(words)


_CLI = "machtrace.cli"

app = lazy_group(
    "machtrace",
    "The call stack of any thread, on Apple platforms and beyond.",
    {
        "backtrace": LazyCommand(
            f"{_CLI}.backtrace:backtrace",
            "Print the call stacks of a process, a core file or an emulated program.",
        ),
        "sample": LazyCommand(
            f"{_CLI}.sample:sample", "Sample a running process to show where it spends its time."
        ),
        "watch": LazyCommand(
            f"{_CLI}.watch:watch",
            "Watch a process and capture stacks while something is wrong with it.",
        ),
        "snapshot": LazyCommand(
            f"{_CLI}.snapshot:snapshot", "Save the threads of a target as a small core file."
        ),
        "symbolicate": LazyCommand(
            f"{_CLI}.reports.commands:symbolicate",
            "Add function names, source lines and inlined calls to reports.",
        ),
        "convert": LazyCommand(
            f"{_CLI}.reports.commands:convert",
            "Write a report in another format, with the names that it has.",
        ),
        "report": LazyCommand(
            f"{_CLI}.reports.commands:report",
            "Analyse reports: groups of the same problem, hot functions, waits and deadlocks.",
        ),
        "image": LazyCommand(
            f"{_CLI}.image.command:image",
            "Show a program or library file: its slices, headers, segments and symbols.",
        ),
        "demangle": LazyCommand(
            f"{_CLI}.demangle:demangle", "Demangle C++, Rust and Swift names in text."
        ),
        "completion": LazyCommand(
            f"{_CLI}.application:completion",
            "Print the script that completes commands, options and formats in a shell.",
        ),
        "demo": LazyCommand(
            f"{_CLI}.demo:demo",
            "Show the threads of an emulated iOS-like process, then of a real one.",
        ),
        "doctor": LazyCommand(
            f"{_CLI}.doctor.command:doctor",
            "Report what this machine and user can capture, and how to enable more.",
        ),
        "atos": LazyCommand(
            f"{_CLI}.application:atos",
            "Name addresses, with the options and output of Apple's atos; see atos -h.",
        ),
        "audit": LazyCommand(
            f"{_CLI}.audit.commands:audit", "Find which code gets which private data."
        ),
        "symbols": LazyCommand(
            f"{_CLI}.symbols.commands:symbols_app",
            "Manage the store of images and dSYMs in which names are looked up, by UUID.",
        ),
        "warehouse": LazyCommand(
            f"{_CLI}.warehouse.commands:warehouse_app",
            "Store the stacks of a fleet in a folder, name them, and query them.",
        ),
        "serve": LazyCommand(
            f"{_CLI}.serve:serve",
            "Serve the warehouse in FOLDER: reports and symbols in, answers out.",
        ),
        "device": LazyCommand(
            f"{_CLI}.device:device_app",
            "List iOS devices and their apps, and copy their crash reports.",
        ),
    },
    click.Option(
        ["--version", "-V"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_version,
        help="Show the version and exit.",
    ),
)
