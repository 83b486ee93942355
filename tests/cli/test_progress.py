"""Progress is for terminals that can redraw a line."""

from __future__ import annotations

import io
import sys

import pytest

from machtrace.cli.progress import Progress, progress_bar, shows_progress, spinner


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self):
        """Return True."""
        return True


def test_nothing_is_shown_elsewhere(capsys):
    """Progress to a file or pipe is silent."""
    with progress_bar(10, unit="files") as bar, spinner("listing") as count:
        bar.show(label="a", note="b")
        bar.advance(10)
    assert type(bar) is Progress
    assert count is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("unit", ["files", "bytes", "ns"])
def test_a_terminal_shows_a_bar(monkeypatch, unit):
    """It has the note before it and the label behind; control characters are escaped."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar(10, unit=unit, note="reports", every=1e-9) as bar:
        bar.show(label="evil\x1b[2Jname")
        bar.advance(4)
        bar.advance(20)
    shown = terminal.getvalue()
    assert "reports" in shown
    assert "name" in shown
    assert "\x1b[2J" not in shown


def test_dumb_terminals_show_none(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert shows_progress(Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert not shows_progress(Terminal())
