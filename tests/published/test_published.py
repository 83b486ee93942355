"""The short form of the runs of published binaries: fixed seeds, files that are available."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.image import ImageList
from machtrace.unwinder.rule_cache import ImageRules, RuleCache
from tests.support.published.comparison import Comparer
from tests.support.published.execution import Execution
from tests.support.published.files import SHORT, installed_files, published_files, subjects
from tests.support.published.harness import Harness, run_image, run_many
from tests.support.published.image import load
from tests.support.published.listing import listed
from tests.support.published.true_calls import Call, TrueCalls

pytestmark = pytest.mark.emulated

_RUNS = 96
_FETCHED = [subject for subject in subjects(published_files()) if subject.key in SHORT]
DEMO = Path(__file__).parents[2] / "src" / "machtrace" / "targets" / "emulator" / "demo.macho"


@pytest.mark.parametrize("subject", _FETCHED, ids=lambda subject: subject.key)
def test_every_run_of_a_published_file_has_exact_stacks(subject):
    if not subject.path.is_file():
        pytest.skip(f"{subject.name} is not fetched: make published-files")
    result = run_image(subject.path, Arch(subject.architecture), 1, _RUNS, name=subject.name)
    assert result.compared > _RUNS // 2
    assert not result.wrong
    assert not result.wrong_registers


@pytest.mark.parametrize("path", [DEMO, *installed_files()], ids=lambda path: path.name)
def test_every_run_of_an_installed_file_has_exact_stacks(path):
    result = run_image(path, None, 1, _RUNS)
    assert result.compared > _RUNS // 2
    assert not result.wrong
    assert not result.wrong_registers


def test_a_run_can_be_repeated_alone():
    """A run depends on its number and the seed, not on the runs before it."""
    image = load(DEMO, None, "")
    harness = Harness(image, 1)
    together = [harness.run(number) for number in range(40)]
    alone = Harness(image, 1).run(37)
    assert alone.trace == together[37].trace
    assert alone.ended == together[37].ended
    assert [verdict.walk for _, verdict in alone.verdicts] == [
        verdict.walk for _, verdict in together[37].verdicts
    ]
    lines = list(listed(harness, alone))
    assert any(line.startswith("compared before instruction") for line in lines)


def test_wrong_walks_are_found():
    """The comparison does not pass everything: frame pointers alone are not exact."""
    image = load(DEMO, None, "")
    harness = Harness(image, 1)
    images = ImageList([image.binary_image()])
    harness.comparer = Comparer(
        image, lambda: RuleCache(images, image.arch, lambda _: ImageRules())
    )
    result = run_many(harness, range(80))
    assert result.compared > 60
    assert 0 < result.exact < result.compared
    assert result.unclaimed


@pytest.mark.parametrize(
    ("depth", "word", "is_call"),
    [(8, 0x1000, True), (8, 0x9000, False), (0, 0x1000, False), (8, None, False)],
)
def test_a_call_by_a_pushed_address_and_a_jump_is_recognised(depth, word, is_call):
    """The true stack has no caller for it: assembly of dav1d chains its transforms so."""
    sp = 0x7000 - 8 - depth
    execution = object.__new__(Execution)
    execution._arm64 = False
    execution._cpu = SimpleNamespace(sp=sp)
    execution._image = SimpleNamespace(holds_code=range(0x1000, 0x2000).__contains__)
    execution.machine = SimpleNamespace(word={sp: word}.get)
    execution.calls = TrueCalls([Call(Avma(0x1500), 0x7000, ())])
    assert execution._has_pushed_code() is is_call
