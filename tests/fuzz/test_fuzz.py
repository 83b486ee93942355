"""Mutated inputs end in a value or in a MachtraceError, soon; and the runner sees where not."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INPUTS = 1000

if find_spec("unicorn") is None:
    pytest.skip("the emulator, unicorn, which seeds come from", allow_module_level=True)


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


TARGETS = (
    "unwind_info",
    "eh_frame",
    "instructions",
    "walker",
    "swift",
    "symcache",
    "fixups",
    "objc",
    "audit",
    "symbol_table",
    "demangle",
    "pclntab",
    "python_memory",
    "reports",
    "rtti",
    "spool",
)


@pytest.mark.parametrize("target", TARGETS)
def test_mutated_inputs(tmp_path: Path, target: str) -> None:
    """No input of a short run is a finding; ``make fuzz`` is a long one."""
    done = _python(
        *("-m", "fuzz", target, "--count", str(INPUTS), "--seed", "1", "--output", str(tmp_path)),
        *("--slow", "5"),  # seconds: other programs may keep this one waiting
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{target}: {INPUTS:,} inputs" in done.stdout


_FAULTY = """
import json, sys
from pathlib import Path
from fuzz.runner import inputs, try_all, write_reproducers
from fuzz.target import Target
from machtrace.errors import MachtraceError

def run(data):
    if len(data) % 7 == 0:
        raise MachtraceError("as it should be")
    if len(data) % 5 == 0:
        return data[len(data)]
    if len(data) % 11 == 0:
        import numpy as np
        return np.uint8(255) + np.uint8(1)

target = Target("faulty", run, lambda: [bytes(range(60)), b"abc" * 30])
outcome = try_all(target, inputs(target, 3, range(400)))
again = try_all(target, inputs(target, 3, range(400)))
paths = write_reproducers(outcome, target, Path(sys.argv[1]))
print(json.dumps([outcome.inputs, outcome.refused, outcome.counts, again.counts, len(paths)]))
"""


def test_findings_are_counted_and_kept(tmp_path: Path):
    """The first of each kind; warnings are findings; the same inputs repeat."""
    done = _python("-c", _FAULTY, str(tmp_path))
    assert done.returncode == 0, done.stderr
    inputs, refused, counts, again, written = json.loads(done.stdout)
    assert inputs == 400
    assert 0 < refused < 400
    assert counts == again
    assert set(counts) == {"IndexError in <string>:run", "RuntimeWarning in <string>:run"}
    assert written == len(list(tmp_path.glob("faulty-*.bin"))) == 2
    for path in tmp_path.glob("*.txt"):
        assert "Traceback" in path.read_text()


def test_no_such_target():
    """The error lists the targets."""
    done = _python("-m", "fuzz", "nothing")
    assert done.returncode == 2
    assert "walker" in done.stderr
