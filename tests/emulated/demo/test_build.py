"""The program in the repository is what its sources give."""

import re

import pytest

from machtrace.targets.emulator import PROGRAM
from tests.support.compilers.demo import BUILT_WITH, build, compiler


@pytest.mark.peer
def test_sources_give_the_same_bytes_again(tmp_path):
    """Compiled and linked in another directory, byte for byte."""
    pytest.importorskip("ziglang", reason="the compiler is not installed (ziglang)")
    recorded = BUILT_WITH.read_text().strip()
    if compiler() != recorded:
        pytest.skip(f"demo.macho was built with {recorded}, here is {compiler()}")
    rebuilt = tmp_path / "other name"
    build(rebuilt)
    assert PROGRAM.read_bytes() == rebuilt.read_bytes()


def test_program_tells_nothing_of_who_built_it():
    """The only path in it is the loader's, which every program names; and it is small."""
    data = PROGRAM.read_bytes()
    paths = set(re.findall(rb"(?:/[A-Za-z0-9._+-]+){2,}", data))
    assert {b"/usr/lib/dyld"} == paths
    assert len(data) < 100_000
