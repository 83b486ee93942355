"""The commands' help: one text for each option, and a list of commands that imports none."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from machtrace.cli.application import LazyGroup, app

HEAVY = ("numpy", "rich", "symbolic", "pydantic", "machtrace.pipeline", "machtrace.cli.backtrace")


def commands(group: LazyGroup = app, path: str = "machtrace"):
    """Yield every command's path, summary and object."""
    context = click.Context(group)
    for name, lazy in group.lazy.items():
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", lazy.summary, command
        if isinstance(command, LazyGroup):
            yield from commands(command, f"{path} {name}")


@pytest.mark.parametrize(
    ("summary", "command"), [pytest.param(*rest, id=path) for path, *rest in commands()]
)
def test_the_list_of_commands_shows_the_first_sentence_of_their_help(summary, command):
    """The table of commands repeats it, so that listing imports none of them."""
    first = " ".join(command.help.split("\n\n")[0].split())
    assert first.partition(". ")[0].rstrip(".") == summary.rstrip(".")


SHARED = ("--search", "--limit", "--stack-limit", "--names", "--lines", "--python")


@pytest.mark.parametrize("option", [*SHARED, "--store"])
def test_an_option_has_one_help_text_in_all_commands(option):
    """It has one default, too."""
    variants = {
        (parameter.help, str(parameter.default), tuple(parameter.opts))
        for _, _, command in commands()
        for parameter in command.params
        if isinstance(parameter, click.Option) and option in parameter.opts
    }
    assert len(variants) == 1


def test_a_crashed_thread_is_offered_where_one_can_exist():
    """No thread of a sampled process has crashed; the rest is the same in all commands."""
    texts = {
        command.name: (parameter.help, parameter.default, parameter.opts)
        for _, _, command in commands()
        for parameter in command.params
        if "--thread" in parameter.opts
    }
    help_of_backtrace, *same = texts["backtrace"]

    assert texts.keys() == {"backtrace", "snapshot", "sample", "watch"}
    assert ", crashed, " in help_of_backtrace
    assert texts["snapshot"] == texts["backtrace"]
    help_of_sample, *_ = texts["sample"]
    assert texts["sample"] == (help_of_backtrace.replace(" crashed,", ""), *same)
    assert texts["watch"] == (help_of_sample, ("main",), same[-1])


def test_defaults_of_sizes_have_units():
    shown = {
        option.get_help_record(click.Context(command))[1].partition("[default: ")[2]
        for _, _, command in commands()
        for option in command.params
        if "--stack-limit" in option.opts
    }
    assert shown == {"16M]"}


def test_every_option_has_a_help_text():
    """The text is a sentence that ends with a full stop."""
    for path, _, command in commands():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (path, parameter.name)
                assert parameter.help.endswith((".", ".)")), (path, parameter.name)


@pytest.mark.peer
@pytest.mark.parametrize("words", [["--help"], ["--version"], []])
def test_help_imports_no_command_and_no_library(words):
    code = (
        "import sys\nfrom machtrace.cli.main import main\n"
        f"sys.argv[1:] = {words}\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"sys.stderr.write(repr(sorted(set({HEAVY}) & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]"
    assert "machtrace" in done.stdout


@pytest.mark.peer
def test_usage_errors_are_a_fact_and_a_hint():
    """The status is 2, as in other programs."""
    for words, fact in (
        (["nope"], "no such command 'nope'"),
        (["backtrace"], "missing argument 'SPEC'"),
        (["backtrace", "--nope", "1"], "no such option"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "machtrace", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        shown, hint = done.stderr.splitlines()
        assert shown.lower().startswith(f"machtrace: {fact.lower()}")
        assert hint.startswith("hint: see machtrace")
