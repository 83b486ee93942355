"""A name read without an index of all names equals the index's name."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.images.named_file import path_image
from machtrace.model.address import ImageOffset
from machtrace.symbols.elf import elf_symbol_table
from machtrace.symbols.image_symbols import first_symbol
from tests.support.compilers.executables import compile_elf

pytest.importorskip("machtrace._native._ranges")
pytestmark = pytest.mark.peer

SOURCE = """
static int volatile sink;
__attribute__((noinline)) static int local(int n) { sink = n; return n; }
int alias(int n) __attribute__((alias("shown")));
int shown(int n) { return local(n) + 1; }
__attribute__((weak)) int weak(int n) { return local(n) + 2; }
extern int outside(int);
int caller(int n) { return outside(n) + shown(n); }
__asm__(".text\\n.globl bare\\nbare:\\n  nop\\ninner:\\n  nop\\n  nop\\n"
        ".type sized, @function\\nsized:\\n  nop\\nlabel:\\n  nop\\n.size sized, . - sized\\n");
"""
STRIPS = {
    "whole": (),
    "debug": ("-g",),
    "stripped": ("-Wl,-s",),
    "sectioned": ("-ffunction-sections",),
}
LIBRARIES = [
    path
    for name in ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libcrypto.so.3")
    for folder in ("/lib/x86_64-linux-gnu", "/usr/lib64", "/lib/aarch64-linux-gnu")
    if (path := Path(folder) / name).exists()
]


@pytest.fixture(
    scope="module",
    params=[f"{cpu}-{strip}" for cpu in ("x86_64", "x86", "aarch64") for strip in STRIPS],
)
def built(request, tmp_path_factory):
    """A shared object."""
    cpu, _, strip = request.param.partition("-")
    folder = tmp_path_factory.mktemp("first")
    (folder / "a.c").write_text(SOURCE.replace("@function", "%function"))
    options = ("-O1", "-shared", "-fPIC", *STRIPS[strip])
    return compile_elf(
        [folder / "a.c"], folder / "a.so", target=f"{cpu}-linux-musl", options=options
    )


def answers(path, twins=()):
    """Return (offset, first answer, the table's answer) around all functions of a file."""
    contents = ElfFileContents(path.read_bytes(), str(path))
    others = [ElfFileContents(twin.read_bytes(), str(twin)) for twin in twins]
    table = elf_symbol_table(contents, others)
    chosen = random.Random(1)  # noqa: S311 - no secret
    functions = list(zip(table.starts.tolist(), table.ends.tolist(), strict=True))
    functions = chosen.sample(functions, min(len(functions), 300))
    offsets = {at for start, end in functions for at in (start, (start + end) // 2, end - 1, end)}
    offsets |= {chosen.randrange(contents.image.size) for _ in range(100)}
    for offset in map(ImageOffset, sorted(offsets)):
        yield offset, first_symbol(contents, offset, lambda: others), table.find(offset)


def test_the_first_answer_equals_the_tables(built):
    """It is missing for stubs, labels without a size, and code without unwind tables."""
    rows = list(answers(built))
    assert [row for row in rows if row[1] is not None and row[1] != row[2]] == []
    named = {row[1].name for row in rows if row[1] is not None}
    assert {"caller", "weak"} <= named
    assert named & {"shown", "alias"}


def test_an_unstripped_twin_names_the_stripped_functions(tmp_path):
    (tmp_path / "a.c").write_text(SOURCE.replace("@function", "%function"))
    options = ("-O1", "-shared", "-fPIC")
    target = "x86_64-linux-musl"
    whole = compile_elf([tmp_path / "a.c"], tmp_path / "a.so", target=target, options=options)
    stripped = compile_elf(
        [tmp_path / "a.c"], tmp_path / "b.so", target=target, options=(*options, "-Wl,-s")
    )
    alone, rows = list(answers(stripped)), list(answers(stripped, [whole]))
    for both in (alone, rows):
        assert [row for row in both if row[1] is not None and row[1] != row[2]] == []
    assert "local" not in {row[1].name for row in alone if row[1] is not None}
    assert "local" in {row[1].name for row in rows if row[1] is not None}


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)
def test_first_answers_in_system_libraries_equal_the_tables(path):
    """Most functions have a first answer."""
    rows = list(answers(path))
    assert [row for row in rows if row[1] is not None and row[1] != row[2]] == []
    inside = [row for row in rows if row[2] is not None]
    assert sum(row[1] is not None for row in inside) > len(inside) / 2


def test_a_few_names_need_no_numpy(built):
    """The search for debug information needs none either."""
    code = (
        "import sys\n"
        "from machtrace.images.named_file import path_image\n"
        "from machtrace.images.resolver import ImageResolver\n"
        "from machtrace.lines.debug_information import DebugInformation\n"
        "from machtrace.symbols.image_symbols import open_image\n"
        "files = ImageResolver()\n"
        "image = path_image(sys.argv[1], None)[0]\n"
        "symbols = open_image(files, image, None)\n"
        "assert symbols.find(int(sys.argv[2])).name == 'caller'\n"
        "index = DebugInformation(files).index(image) if sys.argv[3] == '0' else None\n"
        "assert 'numpy' not in sys.modules, 'numpy was imported'\n"
    )
    offset = next(row[0] for row in answers(built) if row[2] and row[2].name == "caller")
    has_lines = str(int(path_image(built, None)[1].contents.image.has_dwarf))
    subprocess.run([sys.executable, "-c", code, str(built), str(offset), has_lines], check=True)
