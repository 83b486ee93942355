"""``machtrace image``: what it prints, how it fails."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from machtrace.cli.main import main
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.header import CPU_TYPE_ARM64, CPU_TYPE_POWERPC, CPU_TYPE_X86_64
from machtrace.formats.macho.structs import N_EXT, N_SECT, N_UNDF
from tests.support.writers.macho import TEXT_OFFSET, BuiltSlice, BuiltSymbol, ThinFile, fat_file

SYMBOLS = (
    BuiltSymbol("_first", TEXT_OFFSET),
    BuiltSymbol("_alias", TEXT_OFFSET),
    BuiltSymbol("_local", TEXT_OFFSET + 0x10, N_SECT),
    BuiltSymbol("_absent", 0, N_UNDF | N_EXT, 0),
    BuiltSymbol("/src/first.c", 0, 0x64, 0),
)
# Functions at __text + 0, + 0x10 and + 0x18; the last has no symbol.
STARTS = b"\x80\x08\x10\x08\x00"
BUILT = ThinFile(code=bytes(0x20), symbols=SYMBOLS, function_starts=STARTS)


@pytest.fixture
def thin(tmp_path: Path) -> Path:
    """Return a file with two named functions, an alias, and a stripped function."""
    path = tmp_path / "thin"
    path.write_bytes(BUILT.build())
    return path


@pytest.fixture
def fat(tmp_path: Path) -> Path:
    """Return a fat file of x86_64 and arm64 slices."""
    path = tmp_path / "fat"
    intel = ThinFile(cputype=CPU_TYPE_X86_64, cpusubtype=3, symbols=SYMBOLS[:1]).build()
    phone = BUILT.build()
    rows = [
        BuiltSlice(CPU_TYPE_X86_64, 3, 0x1000, len(intel)),
        BuiltSlice(CPU_TYPE_ARM64, 0, 0x4000, len(phone)),
    ]
    path.write_bytes(fat_file(rows, [(0x1000, intel), (0x4000, phone)]))
    return path


@dataclass(frozen=True)
class _Done:
    returncode: int
    stdout: str
    stderr: str


def _image(*arguments: str | Path) -> _Done:
    """Run the command in this process, which is faster than a new one."""
    out, err = StringIO(), StringIO()
    before = sys.argv
    sys.argv = ["machtrace", "image", *map(str, arguments)]
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    return _Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def _json(*arguments: str | Path) -> dict[str, Any]:
    done = _image(*arguments, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_without_options_it_summarises_the_headers(thin: Path):
    """Type, UUID, tables with offsets and counts, segments, load commands."""
    done = _image(thin)
    lines = done.stdout.splitlines()

    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0].startswith("arm64 bundle  01234567-89AB-CDEF-0123-456789ABCDEF  ")
    assert "  symbols                5" in lines
    assert "  function starts        3" in lines
    assert "  code symbols           3" in lines
    assert any(re.match(r" +__TEXT +0x0 +0x500 +0x0 +0x500  r-x +r-x$", line) for line in lines)
    assert any(re.match(r" +3  LC_SYMTAB .* symoff 0x500  nsyms 5  stroff 0x550", x) for x in lines)
    assert "\x1b" not in done.stdout


def test_segments_lists_sections_with_their_places(thin: Path):
    """Addresses, sizes, file offsets and which hold code."""
    done = _image(thin, "--segments")

    assert re.search(
        r"__TEXT +__text +0x400 +0x20 +0x400 +S_REGULAR +code\n", done.stdout, re.MULTILINE
    )
    assert "load commands" not in done.stdout


def test_symbols_lists_the_table_in_its_order(thin: Path):
    """Each row has the symbol's kind, visibility and section."""
    lines = _image(thin, "--symbols").stdout.splitlines()

    assert [line.split() for line in lines[2:]] == [
        ["0", "0x0000000000000400", "defined", "external", "__TEXT,__text", "_first"],
        ["1", "0x0000000000000400", "defined", "external", "__TEXT,__text", "_alias"],
        ["2", "0x0000000000000410", "defined", "local", "__TEXT,__text", "_local"],
        ["3", "0x0000000000000000", "undefined", "external", "_absent"],
        ["4", "0x0000000000000000", "stab", "SO", "/src/first.c"],
    ]


def test_lookup_names_the_symbol_and_its_bounds(thin: Path):
    """The address is hexadecimal or decimal."""
    for address in ("0x408", "1032"):
        (image,) = _json(thin, "--lookup", address)["images"]
        lookup = image["lookup"]

        assert (lookup["section"], lookup["section_offset"]) == ("__TEXT,__text", 8)
        assert lookup["file_offset"] == 0x408
        assert (lookup["function_start"], lookup["function_end"]) == (0x400, 0x410)
        symbol = lookup["symbol"]
        assert (symbol["name"], symbol["linkage_name"], symbol["offset"]) == ("first", "_first", 8)
        assert (symbol["address"], symbol["size"]) == (0x400, 0x10)
        assert (symbol["certainty"], symbol["aliases"]) == ("exact", ["_alias"])


def test_lookup_has_the_same_facts_in_text(thin: Path):
    text = _image(thin, "--lookup", "0x408").stdout

    assert "section   __TEXT,__text + 8\n" in text
    assert "symbol    first + 8\n" in text
    assert "also called: _alias\n" in text
    assert "0x400 to 0x410, exact\n" in text
    assert "function  0x400 to 0x410\n" in text


def test_lookup_gives_no_name_to_a_stripped_function(thin: Path):
    """The symbol before it is another function's."""
    (image,) = _json(thin, "--lookup", "0x41c")["images"]

    assert image["lookup"]["symbol"] is None
    assert (image["lookup"]["function_start"], image["lookup"]["function_end"]) == (0x418, 0x420)
    assert "none that surely names this address" in _image(thin, "--lookup", "0x41c").stdout


def test_lookup_of_data_has_a_segment_and_no_function(thin: Path):
    """The symbol table's own bytes are in __LINKEDIT."""
    (image,) = _json(thin, "--lookup", "0x500")["images"]

    assert image["lookup"]["segment"] == "__LINKEDIT"
    assert image["lookup"]["section"] is None
    assert image["lookup"]["function_start"] is None


def test_all_slices_of_a_fat_file_are_shown_or_the_requested_one(fat: Path):
    both = _json(fat)["images"]
    (arm64,) = _json(fat, "--arch", "arm64")["images"]

    assert [(image["arch"], image["offset"]) for image in both] == [
        ("x86_64", 0x1000),
        ("arm64", 0x4000),
    ]
    assert arm64 == both[1]


def test_json_has_every_fact(thin: Path):
    document = _json(thin, "--symbols")
    (image,) = document["images"]

    assert (document["schema"], document["file"]) == (1, str(thin))
    assert (image["format"], image["arch"], image["type"]) == ("macho", "arm64", "bundle")
    assert image["identifier"] == "01234567-89AB-CDEF-0123-456789ABCDEF"
    assert image["facts"]["symbol_table_offset"] == 0x500
    assert image["segments"][0]["sections"][0]["kind"] == "S_REGULAR"
    assert image["commands"][2]["fields"] == {"uuid": image["identifier"]}
    assert [symbol["name"] for symbol in image["symbols"]] == [symbol.name for symbol in SYMBOLS]


def test_a_dsym_bundle_is_the_file_in_it(thin: Path, tmp_path: Path):
    inside = tmp_path / "App.dSYM" / "Contents" / "Resources" / "DWARF"
    inside.mkdir(parents=True)
    shutil.copy(thin, inside / "App")

    assert _json(tmp_path / "App.dSYM")["file"] == str(inside / "App")


def test_a_file_for_a_cpu_that_cannot_be_unwound_is_still_described(tmp_path: Path):
    """PowerPC files are big-endian and 32-bit."""
    path = tmp_path / "ppc"
    options = {"cputype": CPU_TYPE_POWERPC, "is_64": False, "little_endian": False}
    path.write_bytes(ThinFile(symbols=SYMBOLS, **options).build())
    (image,) = _json(path, "--lookup", "0x404")["images"]

    assert (image["arch"], image["facts"]["byte_order"]) == ("ppc", "big")
    assert image["lookup"]["symbol"]["name"] == "first"


def test_an_elf_file_is_shown_too():
    """The file is Python's own executable."""
    path = Path(sys.executable).resolve()
    if path.read_bytes()[:4] != b"\x7fELF":
        pytest.skip("Python is no ELF file on this system")
    (image,) = _json(path, "--symbols")["images"]
    function = next(
        symbol
        for symbol in image["symbols"]
        if (symbol["kind"], symbol["place"]) == ("function", ".text")
    )
    (looked_up,) = _json(path, "--lookup", hex(function["value"]))["images"]
    named = looked_up["lookup"]["symbol"]

    assert image["format"] == "elf"
    assert "LOAD" in [segment["name"] for segment in image["segments"]]
    assert function["name"] in (named["linkage_name"], *named["aliases"])
    assert (looked_up["lookup"]["section"], named["offset"]) == (".text", 0)


def _broken(path: Path, offset: int, value: int) -> None:
    data = bytearray(BUILT.build())
    command = next(
        c for c in MachOFileContents(bytes(data), "").image.commands if c.name == "LC_SYMTAB"
    )
    data[command.offset + offset : command.offset + offset + 4] = value.to_bytes(4, "little")
    path.write_bytes(data)


def test_a_symbol_table_outside_the_file_hides_nothing_else(tmp_path: Path):
    """The headers are printed, the error is one line, the status is 1."""
    path = tmp_path / "broken"
    _broken(path, 8, 0x7FFFFFFF)
    done = _image(path)

    assert done.returncode == 1
    assert done.stdout.startswith("arm64 bundle")
    assert re.fullmatch(
        rf"machtrace: the symbol table should be 80 bytes.*{re.escape(str(path))} at 0x7fffffff\n"
        r"hint: copy or build the file again.*\n",
        done.stderr,
    )


@pytest.mark.peer
def test_a_traceback_is_never_what_a_user_sees(tmp_path: Path):
    """A new process reports a missing file as a fact and a hint, with status 1."""
    path = tmp_path / "nothing here"
    program = "from machtrace.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "image", path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"machtrace: no such file: {path}\nhint: check that the path exists and is readable\n"
    )


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param(None, "no such file: ", id="missing"),
        pytest.param(b"", "the file is empty: ", id="empty"),
        pytest.param(b"plain text\n", "neither Mach-O nor ELF: ", id="text"),
        pytest.param(b"!<arch>\nstuff", "a static library is an archive", id="archive"),
        pytest.param(b"\xca\xfe\xba\xbe\0\0\0\x41class", "neither Mach-O nor ELF: ", id="java"),
        pytest.param(b"\x7fELF\x02", "ELF header cut short: ", id="cut ELF"),
        pytest.param(BUILT.build()[:50], "304 bytes of header wanted, 18 left: ", id="cut Mach-O"),
        pytest.param(
            fat_file(
                [BuiltSlice(CPU_TYPE_ARM64, 0, 0x1000, 64), BuiltSlice(7, 3, 0x1020, 64)],
                [(0x1000, bytes(0x1000))],
            ),
            "the i386 slice starts at 0x1020, inside the arm64 slice",
            id="overlapping slices",
        ),
    ],
)
def test_a_bad_file_is_one_line_and_status_one(
    content: bytes | None, complaint: str, tmp_path: Path
):
    """The error is a fact with the path, and a hint; no traceback."""
    path = tmp_path / "bad"
    if content is not None:
        path.write_bytes(content)
    done = _image(path)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"machtrace: {complaint}")
    assert str(path) in done.stderr
    assert done.stderr.splitlines()[1].startswith("hint: ")
    assert done.stderr.count("\n") == 2


def test_a_directory_is_one_line(tmp_path: Path):
    """Only dSYM bundles are searched for the file in them."""
    done = _image(tmp_path)

    assert done.returncode == 1
    assert done.stderr.startswith("machtrace: this is a directory, not a file: ")


def test_an_address_outside_or_no_address_at_all(thin: Path):
    """The first is a fact about the file, the second a usage error."""
    outside = _image(thin, "--lookup", "0x99999999")
    wrong = _image(thin, "--lookup", "main")

    assert (outside.returncode, outside.stdout) == (1, "")
    assert outside.stderr.startswith("machtrace: 0x99999999 is in no segment of ")
    assert wrong.returncode == 2
    assert "is not an address" in wrong.stderr


def test_an_absent_architecture_lists_those_that_are_there(fat: Path):
    done = _image(fat, "--arch", "arm64e")

    assert done.returncode == 1
    assert done.stderr.endswith("give --arch one of x86_64, arm64\n")


@pytest.mark.peer
def test_the_real_program_of_a_compiler(tmp_path: Path):
    """A function looked up in its middle has its name, and the next does not get it."""
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles the program")
    code = tmp_path / "code.c"
    code.write_text("int one(int a) { return a * 3; }\nint two(int a) { return a / 7; }\n")
    library = tmp_path / "lib.dylib"
    subprocess.run(
        [
            sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-macos.13.0", "-O1",
            "-shared", "-nostdlib", "-fno-sanitize=undefined", code, "-o", library,
        ],
        check=True,
        timeout=240,
    )  # fmt: skip
    symbols = {s["name"]: s["value"] for s in _json(library, "--symbols")["images"][0]["symbols"]}
    for name in ("one", "two"):
        (image,) = _json(library, "--lookup", hex(symbols[f"_{name}"] + 4))["images"]
        assert image["lookup"]["symbol"]["name"] == name
        assert image["lookup"]["symbol"]["offset"] == 4


@pytest.mark.peer
@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (("-pie", "-fPIE"), "pie"),
        (("-no-pie",), "executable"),
        (("-shared", "-fPIC"), "shared"),
        (("-shared", "-fPIC", "-Wl,-soname,x.so"), "shared"),
        (("-c",), "relocatable"),
    ],
)
def test_elf_files_are_of_the_kind_that_they_were_linked_as(tmp_path: Path, options, kind):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed; it links the files")
    source = tmp_path / "code.c"
    source.write_text("int main(void) { return 0; }\n")
    output = tmp_path / "output"
    subprocess.run(["gcc", *options, source, "-o", output], check=True, timeout=240)
    (image,) = _json(output)["images"]
    assert image["type"] == kind
