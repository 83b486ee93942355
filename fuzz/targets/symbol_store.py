"""Files and archives that are added to a symbol store, and reports that are read for its sake.

Each stored file must be under the identifier in its own headers, and no scratch file may remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from fuzz.mutation import Mutation, insert_token
from fuzz.target import ContractError, Target
from machtrace.atomic_write import UNFINISHED
from machtrace.errors import FormatError
from machtrace.reports.image_lists import listed_images
from machtrace.symbolstore.archive import UnpackLimits
from machtrace.symbolstore.gc import misplaced
from machtrace.symbolstore.store import SymbolStore
from tests.support.writers.symbol_files import APP, DSYM, INTEL_APP, add, fat, zipped

_LIMITS = UnpackLimits(member_bytes=1 << 20, total_bytes=1 << 22)
_MAX_INPUTS = 20_000
"""Inputs of a run: each takes a folder."""
_REPORT = b"""\
Binary Images:
0x102230000 - 0x102237fff App arm64  <82d13d98219e3040b62a07a297007a7c> /x/App.app/App
0x1000 - ??? +com.example (1.0 - 1) <82D13D98-219E-3040-B62A-07A297007A7C> /x/b
"""
_IPS = b"""\
{"slice_uuid":"82d13d98-219e-3040-b62a-07a297007a7c"}
{"usedImages":[{"uuid":"82d13d98-219e-3040-b62a-07a297007a7c","base":4096,"name":"App"}]}
"""


def run(data: bytes) -> None:
    """Add the file to an empty store, and read it as a report."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "given")
        path.write_bytes(data)
        store = SymbolStore(Path(folder, "store"))
        add(store, path, limits=_LIMITS)
        if any(misplaced(list(store.files()))):
            raise ContractError("a file is where its own identifier does not lead")
        if any(one.name.startswith(UNFINISHED) for one in store.root.rglob("*")):
            raise ContractError("a scratch file is left")
    with suppress(FormatError):
        listed_images(data.decode("utf-8", "replace"), "fuzz")


def _seeds() -> Sequence[bytes]:
    inner = zipped({"Contents/Resources/DWARF/App": DSYM}, compression=8)
    members = {"Payload/App.app/App": fat(APP, INTEL_APP), "dSYM.zip": inner, "a.png": b"png"}
    archives = [zipped(members, compression=method) for method in (0, 8, 12)]
    return [*archives, fat(APP, INTEL_APP), DSYM, _REPORT, _IPS]


def _list_of_members(data: bytearray, random: Random) -> None:
    """Change a byte near the end, where an archive lists its members."""
    if data:
        data[max(0, len(data) - random.randrange(1, 400))] = random.choice((0, 1, 127, 255))


_TOKENS = b"PK\x01\x02 PK\x03\x04 PK\x05\x06 PK\x06\x06 PK\x06\x07 !<arch>\n < > { } [ 0x".split(
    b" "
)
_MUTATIONS: tuple[Mutation, ...] = (_list_of_members, _list_of_members, insert_token(_TOKENS))

TARGET = Target("symbol_store", run, _seeds, _MUTATIONS, most=_MAX_INPUTS)
