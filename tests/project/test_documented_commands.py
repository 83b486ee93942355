"""The command lines in the documentation are accepted by the commands."""

import re
import shlex
from pathlib import Path

import click
import pytest

from machtrace.cli.application import app

ROOT = Path(__file__).parents[2]


def shown(page):
    """Yield the command lines of a page's console blocks, up to a comment, pipe or redirection."""
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
        for line in re.findall(r"^\$ (?:sudo )?machtrace (.*)", block, re.MULTILINE):
            words = shlex.split(line, comments=True)
            ends = [words.index(end) for end in ("|", ">", "<") if end in words]
            yield words[: min(ends, default=len(words))]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINES = [(page.name, words) for page in PAGES for words in shown(page)]


@pytest.mark.parametrize(
    "words", [words for _, words in LINES], ids=[f"{page}: {' '.join(of)}" for page, of in LINES]
)
def test_the_command_and_its_options_exist(words):
    """They are parsed and not run; atos has its own parser, with its own tests."""
    command = app
    context = click.Context(app, **app.context_settings)
    while words and isinstance(command, click.Group):
        name, *words = words
        command = command.get_command(context, name)
        assert command is not None
    if command.name != "atos":
        command.make_context(command.name, list(words), parent=context).close()


def test_many_pages_have_command_lines():
    """README among them."""
    assert {"README.md", "sampling.md", "devices.md", "frida.md"} <= {page for page, _ in LINES}
