"""Options: one letter for one meaning, values with units, completion by the shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from machtrace.cli import console, options
from machtrace.cli.application import app
from machtrace.cli.demo import command_name, demo
from machtrace.errors import MachtraceError
from tests.cli.test_help import commands
from tests.support.command_line import run_command as machtrace

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
LETTERS = {
    "-d": {"--duration"},
    "-f": {"--format"},
    "-h": {"--help"},
    "-j": {"--jobs"},
    "-l": {"--limit"},
    "-n": {"--dry-run"},
    "-o": {"--output"},
    "-q": {"--quiet"},
    "-r": {"--rate", "--hz"},
    "-s": {"--search"},
    "-t": {"--thread"},
    "-u": {"--unique"},
    "-v": {"--verbose"},
    "-V": {"--version"},
}
COMMAND_GROUPS = ("audit", "device", "symbols", "warehouse")
CONTEXT = click.Context(app, **app.context_settings)
"""Settings of the application; click keeps a command's help option from its first context."""


def spellings() -> list[tuple[str, list[str]]]:
    """Return the spellings of each option of each command, but atos, which has Apple's."""
    return [
        (path, [*parameter.opts, *parameter.secondary_opts])
        for path, command in [
            ("machtrace", app),
            *((path, command) for path, _, command in commands()),
        ]
        if not path.endswith(" atos")
        for parameter in command.get_params(CONTEXT)
        if isinstance(parameter, click.Option)
    ]


def test_a_letter_has_one_meaning_in_all_commands():
    """An option that has a letter in one command has it in all that have the option."""
    assert len(spellings()) > 80
    for path, names in spellings():
        letters = {name for name in names if not name.startswith("--")}
        long = set(names) - letters
        wanted = {letter for letter, meaning in LETTERS.items() if meaning & long}
        assert letters == wanted, path
        assert not letters or LETTERS[letters.pop()] == long, path


def test_the_page_lists_letters_with_their_commands():
    """All commands with a format but those that print it alone are summed up."""
    rows = dict(re.findall(r"^\| `(-\w)` \| [^|]* \| (.*) \|$", PAGE, re.MULTILINE))
    assert rows.keys() == LETTERS.keys()
    for letter, shown in rows.items():
        paths = [path.removeprefix("machtrace ") for path, names in spellings() if letter in names]
        if letter in ("-f", "-h", "-V"):
            continue
        assert sorted(re.findall(r"`(.*?)`", shown)) == sorted(paths), letter
    with_format = {path for path, names in spellings() if "-f" in names}
    groups = {"machtrace", *(f"machtrace {name}" for name in COMMAND_GROUPS)}
    without = {path for path, _ in spellings()} - with_format - groups
    assert {path.removeprefix("machtrace ") for path in without} == set(
        re.findall(r"`([\w ]+)`", rows["-f"])
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("4K", 4096),
        ("512KiB", 512 << 10),
        ("10G", 10 << 30),
        ("0.5 mb", 1 << 19),
        (1 << 24, 1 << 24),
    ],
)
def test_sizes_have_units(text, size):
    assert options.size_type()(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("10s", 10), ("10", 10), (".5", 0.5), ("2m", 120), ("1h", 3600)],
)
def test_durations_have_units(text, seconds):
    """A bare number counts seconds; of an age, days."""
    assert options.parse_duration(text) == seconds
    assert options.parse_duration("inf") == float("inf")
    assert options.parse_age("2") == 2 * 86400
    assert options.parse_age("2w") == 14 * 86400


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (("backtrace", "1", "--stack-limit", "10X"), "'10X' is not a size; write 512K, 10M or 2G"),
        (("backtrace", "1", "--stack-limit", "1K"), "'1K' is too small; write 4096 or more"),
        (("backtrace", "1", "--limit", "many"), "'many' is not a whole number from 1"),
        (("backtrace", "1", "-l", "0"), "'0' is not a whole number from 1"),
        (("backtrace", "1", "-l", "9" * 5000), "is not a whole number from 1"),
        (("backtrace", "1", "-f", "jsn"), "'jsn' is not one of 'text', 'lldb', "),
        (("sample", "1", "-d", "10 years"), "'10 years' is not a duration; write 500ms, 10s or 2m"),
        (("sample", "1", "-d", "-1s"), "'-1s' is not a duration"),
        (("sample", "1", "-r", "fast"), "'fast' is not a number of samples per second; write 99"),
        (("sample", "1", "-o", ""), "an empty name is no file"),
        (("convert", ""), "an empty name is no file"),
        (("report", "x", "--diff", ""), "an empty name is no file"),
        (("symbolicate", "x", "-s", ""), "an empty name is no file"),
        (("symbolicate", "x", "-j", "1.5"), "'1.5' is not a whole number from 1"),
        (("convert", "x", "y", "-o", "z"), "--output is the argument OUT: pass one of them"),
        (("symbols", "add", "x", "--max-depth", "17"), "'17' is not a whole number from 1 to 16"),
        (("symbols", "gc", "--unused-for", "old"), "'old' is not an age; write 30d or 12h"),
        (("device", "reports", "--newer-than", "soon"), "'soon' is not an age"),
        (("completion", "tcsh"), "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
    ],
)
def test_a_wrong_value_is_an_error_in_words(words, fact):
    """It names the option, and no type of Python."""
    done = machtrace(*words)
    assert done.returncode == 2
    shown, hint = done.stderr.splitlines()
    assert fact in shown
    assert not OF_PYTHON.search(shown)
    assert hint == f"hint: see machtrace {' '.join(words[: 2 if words[0] in GROUPS else 1])} --help"


GROUPS = ("symbols", "device")
OF_PYTHON = re.compile(r"\b(float|int|integer|str|valid|range|None|ValueError|Traceback)\b")


@pytest.mark.parametrize("value", ["§§", "-1", "1e999", "9" * 400, ""])
def test_any_wrong_value_is_refused_in_words(value):
    """The option does not matter; values are only parsed here."""
    refused = 0
    for path, _, command in commands():
        arguments = ["x"] * sum(isinstance(param, click.Argument) for param in command.params)
        for parameter in command.params:
            if not isinstance(parameter, click.Option) or parameter.is_flag:
                continue
            try:
                command.make_context(path, [*arguments, parameter.opts[0], value], parent=CONTEXT)
            except (click.ClickException, MachtraceError) as error:
                shown = error.format_message() if isinstance(error, click.ClickException) else ""
                assert not OF_PYTHON.search(shown.partition(": ")[2]), (path, parameter.opts)
                refused += 1
    assert refused > 30


def test_quiet_leaves_errors(tmp_path):
    """It lasts for one command."""
    report = tmp_path / "a.txt"
    report.write_text("0   App   0x0000000100004000 main + 4\n")
    done = machtrace("symbolicate", report, "-q", "-f", "nsthread")
    assert (done.returncode, done.stderr) == (0, "")
    assert "main + 4" in done.stdout
    done = machtrace("symbolicate", report)
    assert "named from files" in done.stderr
    assert not console.is_quiet()
    done = machtrace("symbolicate", tmp_path / "none", "--quiet")
    assert done.returncode == 1
    assert "no such file or directory" in done.stderr


def test_without_arguments_three_commands_are_shown():
    """It is no error."""
    done = machtrace()
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) < 10
    assert max(map(len, lines)) <= 100
    assert sum(line.startswith("  machtrace ") for line in lines) == 3
    assert "machtrace --help" in done.stdout


@pytest.mark.emulated
@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="a real process is shown on Linux")
def test_the_demo_fits_two_screens():
    """It ends with three commands to try on another process."""
    pytest.importorskip("unicorn", reason="emulated:demo needs the extra 'emulator'")
    done = machtrace("demo")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 100
    assert "_compress" in done.stdout
    assert [line.split()[:2] for line in lines[-4:-1]] == [
        ["machtrace", "backtrace"],
        ["machtrace", "sample"],
        ["machtrace", "doctor"],
    ]
    assert machtrace("demo", "--all").stdout.count("\nThread ") > 10


@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="a real process is shown on Linux")
@pytest.mark.parametrize("arguments", [(), ("--all",)])
def test_the_demo_without_the_emulator_shows_the_real_process(monkeypatch, capsys, arguments):
    for name in [name for name in sys.modules if name.startswith("machtrace.targets.emulator")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "unicorn", None)
    demo.main(list(arguments), standalone_mode=False)
    done = capsys.readouterr()
    assert "in an emulator" not in done.out
    assert "A real process of five threads" in done.out
    # Python functions are in the short form; the interpreter's functions may have no names.
    assert ("“compressor”" if arguments else "_compress") in done.out
    assert done.err.splitlines()[0] == (
        "machtrace: the emulated process is left out: emulated:demo requires the extra 'emulator'"
    )


def test_the_demo_names_a_command_that_the_shell_finds(monkeypatch, tmp_path):
    """After make demo it is not in the path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command_name(".venv/bin/machtrace") == ".venv/bin/machtrace"
    assert command_name("/src/machtrace/__main__.py") == f"{sys.executable} -m machtrace"
    (tmp_path / "machtrace").write_text("")
    (tmp_path / "machtrace").chmod(0o755)
    assert command_name(".venv/bin/machtrace") == "machtrace"


# --- completion ---


def completed(*words: str, shell: str = "bash", code: str = "") -> tuple[list[str], str]:
    """Return the completions of the last word, and standard error."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from machtrace.cli.main import main\ntry: main()\nfinally:\n {code or 0}",
        ],
        env={
            **os.environ,
            "_MACHTRACE_COMPLETE": f"{shell}_complete",
            "COMP_WORDS": "\n".join(("machtrace", *words)),
            "COMP_CWORD": words[-1] if shell == "fish" else str(len(words)),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines(), done.stderr


@pytest.mark.peer
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("sy",), ["plain,symbolicate", "plain,symbols"]),
        (("symbols", "g"), ["plain,gc"]),
        (("backtrace", "1", "--uni"), ["plain,--unique"]),
        (("backtrace", "1", "--format", "l"), ["plain,lldb"]),
        (
            ("convert", "x", "-f", "s"),
            ["plain,stacks-json", "plain,sample", "plain,speedscope", "plain,svg"],
        ),
        (("sample", "1", "-t", "m"), ["plain,main"]),
        (("backtrace", "./co"), ["file,./co"]),
        (("convert", "a", "b"), ["file,b"]),
        (("symbolicate", "-s", "dS"), ["file,dS"]),
        (("symbols", "list", "--store", "x"), ["dir,x"]),
        (("completion", "z"), ["plain,zsh"]),
        (("--ver",), ["plain,--version"]),
    ],
)
def test_shells_complete_commands_options_and_formats(words, expected):
    assert completed(*words)[0] == expected


@pytest.mark.peer
@pytest.mark.parametrize(
    "command", sorted({path.split()[1] for path, _, _ in commands()} - {"atos"})
)
def test_completion_loads_no_library(command):
    heavy = ("numpy", "rich", "symbolic", "unicorn")
    code = f"import sys; sys.stderr.write(repr(sorted(set({heavy}) & set(sys.modules))))"
    assert completed(command, "--", code=code)[1] == "[]"


@pytest.mark.peer
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell, tmp_path):
    """Where the shell is installed, it accepts the script."""
    done = machtrace("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"_MACHTRACE_COMPLETE={shell}_complete" in done.stdout
    script = tmp_path / "script"
    script.write_text(done.stdout)
    if (path := shutil.which(shell)) is not None:
        subprocess.run([path, "-n", script], check=True)


@pytest.mark.peer
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_with_the_script(tmp_path):
    """The function that bash calls fills its array of completions."""
    program = tmp_path / "machtrace"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m machtrace "$@"\n')
    program.chmod(0o755)
    code = (
        'eval "$(machtrace completion bash)"\n'
        "COMP_WORDS=(machtrace backtrace 1 -f j) COMP_CWORD=4\n"
        '_machtrace_completion machtrace; echo "${COMPREPLY[*]}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == ["json"]
