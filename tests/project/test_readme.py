"""README shows what the commands print."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.peer

ROOT = Path(__file__).parents[2]
SHOWN = re.findall(
    r"```console\n\$ machtrace ([^\n]*)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
)
TIME = re.compile(r"stopped for [\d.]+ [µm]s")


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
def test_commands_print_what_readme_shows(command, shown):
    """Character for character, except for stop times, which differ each time."""
    pytest.importorskip("unicorn", reason="emulated:demo needs the extra 'emulator'")
    printed = subprocess.run(
        [sys.executable, "-m", "machtrace", *command.split()],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout

    assert TIME.sub("", shown) == TIME.sub("", printed)
