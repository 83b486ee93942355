"""``convert --no-idle`` and ``--merge-threads``: samples that were recorded are chosen later."""

from __future__ import annotations

import sys
from io import StringIO
from typing import Any

import pytest

from machtrace.cli.main import main
from machtrace.model.snapshot import ThreadState
from machtrace.render import folded, profile_json
from tests.support.reports.models import Seen, function, profile
from tests.support.reports.samples import REPORT_SAMPLES

HOT, WAIT = function("hot", is_leaf=True), function("wait", offset=0x300, is_leaf=True)
RECORDED = profile(
    [
        Seen(0, [WAIT], 3, ThreadState.SLEEPING, 0),
        Seen(1, [HOT], 2, ThreadState.RUNNING, 9_000_000),
        Seen(2, [HOT], 1, ThreadState.RUNNING, 1_000_000),
        Seen(2, [WAIT], 1, ThreadState.UNINTERRUPTIBLE, 0),
    ],
    names=("main", "pool", "pool"),
)


@pytest.fixture
def convert(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs the command here: status, standard output, standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["machtrace", "convert", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        assert isinstance(ended.value.code, int | None)
        return ended.value.code or 0, out, err

    return run


@pytest.fixture
def recorded(tmp_path: Any) -> Any:
    """Return a file of ``sample --format json``."""
    path = tmp_path / "recorded.json"
    with path.open("w") as sink:
        profile_json.write(RECORDED, sink)
    return path


def test_idle_samples_are_left_out(convert: Any, recorded: Any) -> None:
    _, out, err = convert(recorded, "-", "-f", "folded", "--no-idle")
    assert (sorted(out.splitlines()), err) == (["pool [260];hot 2", "pool [261];hot 1"], "")


def test_threads_of_a_name_are_merged(convert: Any, recorded: Any, tmp_path: Any) -> None:
    """In the profile, so that every format has one thread for them."""
    _, out, _ = convert(recorded, "-f", "folded", "--merge-threads=name")
    assert sorted(out.splitlines()) == ["main;wait 3", "pool;hot 3", "pool;wait 1"]
    status, out, _ = convert("--merge-threads", recorded, tmp_path / "all.pb.gz")
    assert (status, out) == (0, "")
    _, out, _ = convert(recorded, "-f", "sample", "--merge-threads=name", "--no-idle")
    assert "    3 pool   (2 threads, 3 running, 1 idle left out, 0.019 s CPU)\n" in out


def test_a_profile_without_states_is_refused(convert: Any, tmp_path: Any) -> None:
    path, sink = tmp_path / "a.folded", StringIO()
    folded.write(RECORDED, sink)
    path.write_text(sink.getvalue())
    status, out, err = convert(path, "-f", "folded", "--no-idle")
    assert (status, out) == (1, "")
    assert "the report does not state which samples are idle" in err


@pytest.mark.parametrize("words", [["--no-idle"], ["--merge-threads"]])
def test_a_report_without_samples_is_refused(convert: Any, tmp_path: Any, words: list[str]) -> None:
    path = tmp_path / "a.ips"
    path.write_bytes(REPORT_SAMPLES["ips"])
    status, out, err = convert(path, "-f", "text", *words)
    assert (status, out) == (1, "")
    assert "the report has no samples" in err
