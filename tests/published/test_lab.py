"""The lab of published binaries: stored results, the page, and debuggers at the same moments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from machtrace.model.arch import Arch
from tests.published.lab import EXPLANATIONS
from tests.support.lab.lldb import lldb_program
from tests.support.published import results
from tests.support.published.files import Archive, PublishedFile, Registry, Subject
from tests.support.published.harness import run_image
from tests.support.published.peers import peer_shares
from tests.support.published.report import Row, page
from tests.support.published.results import Mismatch, Part, PeerShare, Result, ResultStore

pytestmark = pytest.mark.emulated

DEMO = Path(__file__).parents[2] / "src" / "machtrace" / "targets" / "emulator" / "demo.macho"
_LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")
_RUNS = 40
_SAMPLES = 10


def _subject(architecture: str, path: Path) -> Subject:
    archive = Archive(Registry.PYPI, "package", "1.0", "any", "0" * 64)
    file = PublishedFile(
        archive=archive,
        name="program",
        member="program",
        piece=None,
        architectures=(architecture,),
        sha256="0" * 64,
        language="C",
        why="a test",
    )
    return Subject("program", architecture, path, file)


@pytest.fixture(scope="module")
def demo() -> Result:
    """Runs of the demo."""
    return run_image(DEMO, Arch.ARM64, 1, _RUNS, samples=_SAMPLES)


def _mismatch() -> Mismatch:
    return Mismatch(
        run=7,
        step=3,
        function="f + 4",
        caller="g + 8",
        frame=1,
        truth=(0x1004, 0x2008, 0x3000),
        walk=(0x1004, 0x5555),
        methods=("context", "prologue"),
        stop="complete",
        claims=True,
    )


def _page(result: Result, explanations: Path = EXPLANATIONS) -> str:
    row = Row(_subject("arm64", DEMO), "cc 1.0", result, {"lldb": PeerShare(9, 10)})
    return page([row], explanations, 1, "lldb 1.0")


def test_stored_results_are_continued(
    demo: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.jsonl"
    first, second = Part(1, 0, _RUNS), Part(1, _RUNS, _RUNS)
    result = replace(demo, wrong=[_mismatch()])
    store = ResultStore(path)
    store.add("program arm64", first, result)
    store.add_peers("program arm64", first, {"lldb": PeerShare(9, 10)})

    resumed = ResultStore(path)
    assert resumed.has("program arm64", first)
    assert not resumed.has("program arm64", second)
    stored = replace(result, samples=[], seconds=round(result.seconds, 1))
    assert resumed.result("program arm64", [first]) == stored
    assert resumed.peers("program arm64", first) == {"lldb": PeerShare(9, 10)}
    assert not resumed.has_peers("program arm64", second)

    monkeypatch.setattr(results, "_sources", lambda: "others")
    assert not ResultStore(path).has("program arm64", first)


def test_the_page_shows_a_row_for_each_slice(demo: Result) -> None:
    text = _page(demo)
    assert f"| program arm64 | {_RUNS} | " in text
    assert "| program (arm64) | package 1.0 (PyPI) | C | cc 1.0 | a test |" in text
    assert "Nowhere: every row is whole." in text


def test_the_page_explains_what_is_not_exact(demo: Result, tmp_path: Path) -> None:
    result = replace(demo, exact=demo.exact - 1, wrong=[_mismatch()])
    text = _page(result)
    assert "0x1004 g + 8, once: frame 1, claimed" in text
    assert "The reason is not known." in text
    explanations = tmp_path / "explanations.toml"
    explanations.write_text('[explanations]\n"program arm64 0x1*" = "It was synthetic."\n')
    assert "It was synthetic." in _page(result, explanations)


@pytest.mark.peer
@pytest.mark.parametrize(
    ("path", "architecture", "peers"),
    [(DEMO, "arm64", {"lldb"}), (_LIBC, "x86_64", {"lldb", "gdb"})],
    ids=lambda value: getattr(value, "name", None),
)
def test_debuggers_unwind_most_moments(path: Path, architecture: str, peers: set[str]) -> None:
    if not path.is_file():
        pytest.skip(f"no file {path}")
    if lldb_program() is None:
        pytest.skip("lldb is not installed")
    result = run_image(path, Arch(architecture), 1, _RUNS, samples=_SAMPLES)
    shares = peer_shares(_subject(architecture, path), result.samples)
    assert set(shares) == peers
    for share in shares.values():
        assert share.missing or share.right > _SAMPLES // 2
