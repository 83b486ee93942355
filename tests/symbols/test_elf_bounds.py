"""A name of a stripped ELF file covers its own code: symbols without a size, and unwind tables."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from machtrace.errors import MemoryReadError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.model.address import FileOffset, ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.symbols.elf import elf_symbol_table
from machtrace.symbols.image_symbols import first_symbol
from machtrace.symbols.table import SymbolTable
from machtrace.unwinder.arch.own_code import MAX_INSTRUCTIONS, OwnCode
from tests.support.compilers.executables import compile_elf

pytestmark = pytest.mark.peer

SYSTEM_CALLS = {
    "x86_64": "mov $0, %eax\n syscall\n ret",
    "x86": "mov $3, %eax\n int $0x80\n ret",
    "aarch64": "mov x8, #63\n svc #0\n ret",
}
LEAVES = {
    "x86_64": "call outside\n",
    "x86": "call outside@PLT\n",
    "aarch64": "bl outside\n",
}
LOOPS = {
    "x86_64": "test %edi, %edi\n je 1f\n call outside\n 2: dec %edi\n jne 2b\n ret\n 1: nop\n ret",
    "x86": "test %eax, %eax\n je 1f\n call outside@PLT\n 2: dec %eax\n jne 2b\n ret\n 1: nop\n ret",
    "aarch64": "cbz w0, 1f\n bl outside\n 2: subs w0, w0, #1\n b.ne 2b\n ret\n 1: nop\n ret",
}
ASSEMBLY = """
.text
.globl filled
.type filled, %function
filled:
  nop
  ret
.type hidden, %function
hidden:
  {system_call}
.globl looped
.type looped, %function
looped:
  {loop}
beyond:
  nop
  ret
.globl started
started:
  nop
  {leave}
startup:
  nop
  ret
"""
C = """
static int volatile sink;
__attribute__((noinline)) static int local(int n) { sink = n; return n; }
int outside(int n) { return local(n) + 1; }
"""
STRIPS = {"all": ("-Wl,-s",), "locals": ("-Wl,-x",)}


@pytest.fixture(scope="module", params=SYSTEM_CALLS)
def sources(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A C source, and assembly code whose functions have no size."""
    folder = tmp_path_factory.mktemp("sources") / request.param
    folder.mkdir()
    (folder / "a.c").write_text(C)
    (folder / "b.s").write_text(
        ASSEMBLY.format(
            system_call=SYSTEM_CALLS[request.param],
            loop=LOOPS[request.param],
            leave=LEAVES[request.param],
        )
    )
    return [folder / "a.c", folder / "b.s"]


def _linked(sources: list[Path], name: str, *options: str) -> ElfFileContents:
    path = compile_elf(
        sources,
        sources[0].with_name(name),
        target=f"{sources[0].parent.name}-linux-musl",
        options=("-O1", "-shared", "-fPIC", *options),
    )
    return ElfFileContents(path.read_bytes(), name)


def _names(contents: ElfFileContents) -> dict[int, str]:
    """Return the name of each byte of the code that has one, and check single lookups."""
    table = elf_symbol_table(contents)
    names = {}
    for index in np.flatnonzero(table.is_named).tolist():
        symbol = table.symbol(index)
        for at in range(symbol.offset, symbol.offset + (symbol.size or 0)):
            names[at] = symbol.linkage_name
    for offset in map(ImageOffset, range(contents.image.size)):
        first = first_symbol(contents, offset)
        assert first is None or first == table.find(offset)
    return names


@pytest.mark.parametrize("strip", STRIPS)
def test_names_of_a_stripped_file_are_those_of_the_whole(sources: list[Path], strip: str) -> None:
    """At every byte the name is the same, or there is none: other functions follow each symbol."""
    whole = _names(_linked(sources, "whole.so"))
    stripped = _names(_linked(sources, f"{strip}.so", *STRIPS[strip]))
    assert {"hidden", "beyond", "startup", "local"} <= set(whole.values())
    assert {at: whole.get(at) for at in stripped} == stripped
    assert set(stripped.values()) >= {"filled", "looped", "started", "outside"}
    covered = {name: list(stripped.values()).count(name) for name in stripped.values()}
    counts = {name: list(whole.values()).count(name) for name in whole.values()}
    assert {name: counts[name] for name in ("filled", "looped")} == {
        name: covered[name] for name in ("filled", "looped")
    }


def test_a_whole_file_names_assembly_code_up_to_the_next_symbol(sources: list[Path]) -> None:
    """Functions follow each other without padding; calls return."""
    table = elf_symbol_table(_linked(sources, "unstripped.so"))
    bounds = {
        table.linkage_name(index): (int(table.starts[index]), int(table.ends[index]))
        for index in range(len(table))
    }
    order = ["filled", "hidden", "looped", "beyond", "started", "startup"]
    for name, following in itertools.pairwise(order):
        assert bounds[name][1] == bounds[following][0]


def test_stripped_code_in_a_file_with_local_symbols_has_no_name(sources: list[Path]) -> None:
    """A library of which only the assembler knew the local names was linked into it."""
    text = sources[1].read_text().replace("startup:", "  ret\nstartup:")
    named, nameless = (sources[1].with_name(name) for name in ("named.s", "nameless.s"))
    named.write_text(text)
    whole = _names(_linked([sources[0], named], "all.so"))
    for name in ("hidden", "beyond", "startup"):
        text = text.replace(f".type {name}, %function\n", "").replace(f"{name}:", f".L{name}:")
    nameless.write_text(text)
    seen = _names(_linked([sources[0], nameless], "partly.so"))
    assert "local" in seen.values()
    assert {at: whole[at] for at in seen} == seen
    assert not {"hidden", "beyond", "startup"} & {whole[at] for at in seen}


UNDESCRIBED = """
.text
.globl shown
.type shown, %function
shown: ret
.size shown, . - shown
.cfi_startproc
 nop
 ret
.cfi_endproc
.type undescribed, %function
undescribed:
 nop
 nop
 ret
"""


def test_code_after_the_last_call_frame_description_has_no_function(tmp_path: Path) -> None:
    """An unwind table describes a part of the code; what follows is not its last function."""
    (tmp_path / "a.s").write_text(UNDESCRIBED)
    tables = []
    for name, options in (("whole", ()), ("stripped", ("-Wl,-s",))):
        path = compile_elf(
            [tmp_path / "a.s"],
            tmp_path / name,
            target="x86_64-linux-musl",
            options=("-O1", "-shared", "-fPIC", *options),
        )
        contents = ElfFileContents(path.read_bytes(), name)
        tables.append((contents, elf_symbol_table(contents)))
    (_, whole), (contents, stripped) = tables
    hidden = _offset(whole, "undescribed")
    described = stripped.find(ImageOffset(hidden - 1))
    assert described is not None
    assert (described.offset, described.size) == (hidden - 2, 2)
    for at in range(3):
        offset = ImageOffset(hidden + at)
        assert (stripped.find(offset), first_symbol(contents, offset)) == (None, None)


def _offset(table: SymbolTable, name: str) -> int:
    return next(
        int(table.starts[index]) for index in range(len(table)) if table.linkage_name(index) == name
    )


# --- the published file ---


def test_no_symbol_of_musls_library_names_code_that_is_not_its_own() -> None:
    """``memset`` of Debian's and Alpine's has no size, and blocking system calls follow it."""
    path = Path("/lib/x86_64-linux-musl/libc.so")
    archive = path.with_name("libc.a")
    linker, objdump = shutil.which("gcc"), shutil.which("objdump")
    if not path.exists() or not archive.exists() or linker is None or objdump is None:
        pytest.skip("musl-tools, gcc or binutils is not installed; its library is read here")
    contents = ElfFileContents(path.read_bytes(), str(path))
    table = elf_symbol_table(contents)
    memset = table.find(ImageOffset(_offset(table, "memset")))
    assert memset is not None
    end = memset.offset + (memset.size or 0)
    code = bytes(contents.read_svma(Svma(contents.image.header_svma + end), 128))
    blocked = code.index(b"\x0f\x05\xc3")  # syscall; ret, in __syscall_cp_asm
    assert table.find(ImageOffset(end + blocked)) is None


def test_musls_library_and_its_archive_agree(tmp_path: Path) -> None:
    """The archive is not stripped: linked and stripped, it has the same names at every byte."""
    archive = Path("/lib/x86_64-linux-musl/libc.a")
    linker, strip = shutil.which("gcc"), shutil.which("strip")
    if not archive.exists() or linker is None or strip is None:
        pytest.skip("musl-tools, gcc or binutils is not installed; its library is read here")
    whole, stripped = tmp_path / "whole.so", tmp_path / "stripped.so"
    libraries = ("-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive")
    subprocess.run(
        [linker, "-shared", "-nostdlib", "-o", whole, *libraries], check=True, timeout=60
    )
    subprocess.run([strip, "-o", stripped, whole], check=True, timeout=60)
    true, seen = (
        elf_symbol_table(ElfFileContents(path.read_bytes(), path.name))
        for path in (whole, stripped)
    )
    starts = [int(start) for start in seen.starts]
    for index, start in enumerate(starts):
        symbol = seen.symbol(index)
        inside = np.arange(start, int(seen.ends[index]), dtype=np.uint64)
        owners = np.unique(true.ids(inside))
        assert len(owners) == 1
        owner = true.symbol(int(owners[0]))
        assert {symbol.name, *symbol.aliases} & {owner.name, *owner.aliases}


# --- the code of one symbol ---


class _Code:
    """Code at address 0."""

    source = "code"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        if address + size > len(self._data):
            raise MemoryReadError(address, size)
        return memoryview(self._data)[address : address + size]

    def read_file(self, offset: FileOffset, size: int, /) -> memoryview:
        return self.read_svma(Svma(offset), size)


X86 = {
    "a return": ("c3 90 90", 1),
    "a jump": ("eb 10 90", 2),
    "a jump through a register": ("ff e0 90", 2),
    "a trap": ("0f 0b 90", 2),
    "a conditional jump to the end of the code before": ("74 01 c3 90 c3 90", 5),
    "a conditional jump past other code": ("74 03 c3 90 90 c3", 3),
    "a call": ("e8 00 10 00 00 c3", 5),
    "a call that a conditional jump passes": ("74 06 e8 00 10 00 00 c3 c3 90", 9),
    "a system call": ("b8 00 00 00 00 0f 05 c3 90", 8),
    "a system call that ends the program": ("b8 3c 00 00 00 0f 05 c3 90", 7),
    "invalid code": ("06 90", 1),
}
ARM64 = {
    "a return": ("d65f03c0 d503201f", 4),
    "a jump": ("14000008 d503201f", 4),
    "a conditional jump past a return": ("b4000040 d65f03c0 d503201f d65f03c0 d503201f", 16),
    "a call": ("94000100 d65f03c0", 4),
    "a system call": ("d2800be8 d4000001 d65f03c0 d503201f", 12),
    "a system call that ends the program": ("d2800ba8 d4000001 d65f03c0", 8),
}
OWN = [(Arch.X86_64, name, *row) for name, row in X86.items()]
OWN += [(Arch.ARM64, name, *row) for name, row in ARM64.items()]


@pytest.mark.parametrize(
    ("arch", "name", "code", "size"), OWN, ids=lambda one: getattr(one, "value", None)
)
def test_own_code_ends_at(arch: Arch, name: str, code: str, size: int) -> None:
    """``name`` describes the code."""
    words = [bytes.fromhex(word) for word in code.split()]
    data = b"".join(word[::-1] for word in words)
    contents = _Code(data)
    assert size == OwnCode(contents, arch).end(Svma(0), Svma(len(data))), name


WHOLE = {
    "a call": ("e8 00 10 00 00 c3 90", 6),
    "a target after padding": ("74 05 c3 66 90 66 90 c3 90", 8),
    "a target after other code": ("74 05 c3 31 c0 66 90 c3 90", 3),
    "a target after breakpoints": ("74 03 c3 cc cc c3 90", 6),
}


@pytest.mark.parametrize(("code", "size"), WHOLE.values(), ids=WHOLE)
def test_own_code_of_an_image_with_local_symbols_ends_at(code: str, size: int) -> None:
    data = bytes.fromhex(code)
    own = OwnCode(_Code(data), Arch.X86_64, is_stripped=False)
    assert size == own.end(Svma(0), Svma(len(data)))


def test_own_code_beyond_the_limit_is_not_decoded() -> None:
    """If there are many symbols without sizes, the first have bounds."""
    data = b"\x90" * MAX_INSTRUCTIONS + b"\xc3\x90"
    end = Svma(len(data))
    for is_stripped, others in ((True, 1), (False, 2)):
        own = OwnCode(_Code(data), Arch.X86_64, is_stripped=is_stripped)
        assert own.end(Svma(2), end) == end - 1
        assert own.end(Svma(end - 2), end) == end - 1
        assert own.end(Svma(end - 2), end) == end - 2 + others


def test_own_code_of_other_architectures_is_the_start() -> None:
    assert OwnCode(_Code(bytes(8)), Arch.ARM).end(Svma(0), Svma(8)) == 1
    assert OwnCode(_Code(bytes(8)), None).end(Svma(4), Svma(8)) == 5


def test_own_code_that_cannot_be_read_is_the_start() -> None:
    assert OwnCode(_Code(b""), Arch.X86_64).end(Svma(16), Svma(32)) == 17
