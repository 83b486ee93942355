"""Valid and invalid target specs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import machtrace as mt
from machtrace.cli.backtrace import backtrace
from machtrace.cli.sample import sample
from machtrace.cli.snapshot import snapshot
from machtrace.errors import FormatError, TargetSpecError
from machtrace.targets.open import SCHEMES


@pytest.mark.parametrize(
    "nothing", [None, "", 3.5, b"1", object()], ids=["None", "empty", "float", "bytes", "object"]
)
@pytest.mark.parametrize("entry", [mt.open_target, mt.snapshot, mt.backtraces])
def test_what_names_no_target_is_refused_alike(entry, nothing):
    """Every entry point raises an error with a remedy."""
    with pytest.raises(TargetSpecError, match="target") as refused:
        entry(nothing)
    assert "process id" in refused.value.remedy


def test_readme_lists_the_schemes():
    """Every one, by the spec that hints and helps show; no other."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    table = readme.split("| target | |\n", 1)[1].split("\n\n", 1)[0]
    column = "".join(row.split(" | ")[0] for row in table.splitlines())
    specs = re.findall(r"`(\w+:[^`]*)`", column)
    prefixes = {scheme.prefix for scheme in SCHEMES}

    assert {re.match(r"\w+:(?://)?", spec)[0] for spec in specs} == prefixes
    assert {scheme.example.lower() for scheme in SCHEMES} <= {spec.lower() for spec in specs}


def test_hints_and_helps_list_the_schemes():
    """A core or an emulated program does not run, so it cannot be sampled."""
    every = [scheme.example for scheme in SCHEMES]
    with pytest.raises(TargetSpecError) as refused:
        mt.open_target("no-such-file")
    for command in (backtrace, snapshot):
        assert all(example in command.help for example in every)
    assert all(example in refused.value.remedy for example in every)
    assert [example for example in every if example in sample.help] == every[:-1]


def test_unknown_schemes_are_errors_unless_a_file_has_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TargetSpecError, match=r"^unknown scheme nonsense://$") as refused:
        mt.open_target("nonsense://core")
    assert all(scheme.example in refused.value.remedy for scheme in SCHEMES)

    (tmp_path / "nonsense:").mkdir()
    (tmp_path / "nonsense:" / "core").write_bytes(b"no core")
    with pytest.raises(FormatError, match="nonsense:/core"):
        mt.open_target("nonsense://core")
