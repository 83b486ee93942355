"""Lines of programs whose DWARF is in ``.dwo`` and ``.dwp`` files."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.dwarf.split_units import DwarfReader
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.images.named_file import path_image
from machtrace.images.resolver import ImageResolver
from machtrace.lines.debug_information import DebugInformation
from machtrace.lines.index_cache import IndexCache, IndexFolder
from machtrace.lines.split.index import SplitIndex
from machtrace.model.address import ImageOffset
from tests.support.command_line import run_command
from tests.support.compilers.executables import run_zig

pytestmark = pytest.mark.peer

FIRST = """\
int sink;
static inline int add(int a, int b) {
  return a + b * sink;
}
__attribute__((noinline)) int leaf(int x) {
  for (int i = 0; i < x; i++)
    sink += add(i, x);
  return add(x, 3);
}
static inline __attribute__((always_inline)) int middle(int x) {
  return add(leaf(x), x) + 1;
}
__attribute__((noinline)) int top(int x) {
  return middle(x) + middle(x + 1);
}
"""
SECOND = """\
int top(int);
static inline int times(int a) {
  return a * 7;
}
__attribute__((section(".text.away"), noinline)) int away(int a) {
  return times(a);
}
int start(int count) {
  return top(count) + times(count) + away(count);
}
"""
LINUX = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu", "x86": "i386-linux-gnu"}
Frames = dict[int, list[tuple[str, str, int | None]]]


class Built:
    """A program, compiled twice in folders of its own: whole, and with split DWARF."""

    def __init__(self, folder: Path, compiler: str, version: int, cpu: str) -> None:
        self.whole, self.split = folder / "whole" / "program", folder / "split" / "program"
        self.version, self.cpu = version, cpu
        for program, options in ((self.whole, ()), (self.split, ("-gsplit-dwarf",))):
            program.parent.mkdir(parents=True)
            units = []
            for name, text in (("first", FIRST), ("second", SECOND)):
                (program.parent / f"{name}.c").write_text(text)
                flags = ["-O2", "-g", f"-gdwarf-{version}", "-fPIC", *options]
                flags += ["-ffreestanding", "-c", f"{name}.c", "-o", f"{name}.o"]
                if compiler == "gcc":
                    subprocess.run(["gcc", *flags], cwd=program.parent, check=True, timeout=60)
                else:
                    run_zig("clang", ["-target", LINUX[cpu], *flags], program.parent)
                units.append(f"{name}.o")
            link = ["-target", f"{cpu}-linux-musl", "-nostdlib", "-shared", "-Wl,--build-id"]
            run_zig("cc", [*link, *units, "-o", program.name], program.parent)


@pytest.fixture(
    scope="module",
    params=[
        ("clang", 5, "x86_64"),
        ("clang", 4, "x86_64"),
        ("clang", 5, "aarch64"),
        ("clang", 4, "x86"),
        ("gcc", 5, "x86_64"),
        ("gcc", 4, "x86_64"),
    ],
    ids=lambda one: "-".join(map(str, one)),
)
def built(request, tmp_path_factory) -> Built:
    compiler, version, cpu = request.param
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles and links the programs")
    if compiler == "gcc":
        found = shutil.which("gcc")
        machine = ["gcc", "-dumpmachine"]
        if found is None or "x86_64" not in subprocess.check_output(machine, text=True):
            pytest.skip("gcc for x86_64 is not installed; it compiles the program")
    return Built(tmp_path_factory.mktemp("built"), compiler, version, cpu)


@pytest.fixture
def moved(built, tmp_path) -> Path:
    """The split program in another folder, where none of its units are."""
    path = tmp_path / "moved" / "program"
    path.parent.mkdir()
    shutil.copy(built.split, path)
    for unit in built.split.parent.glob("*.dwo"):
        unit.rename(unit.with_suffix(".away"))
    yield path
    for unit in built.split.parent.glob("*.away"):
        unit.rename(unit.with_suffix(".dwo"))


def frames(path: Path, *search: Path, folder: IndexFolder | None = None) -> Frames:
    """Return the calls at each offset that has some: names, files without folders, lines."""
    info = DebugInformation(ImageResolver.of([str(one) for one in search]), IndexCache(folder))
    image = path_image(str(path), None)[0]
    rows = {}
    for offset in code(path):
        calls = info.frames(image, offset)
        if calls:
            rows[offset] = [
                ("", "", None)
                if call.location is None
                else (call.name, Path(call.location.path).name, call.location.line)
                for call in calls
            ]
    return rows


def problems(path: Path) -> list[str]:
    info = DebugInformation(ImageResolver(), IndexCache(None))
    image = path_image(str(path), None)[0]
    for offset in code(path):
        info.frames(image, offset)
    return [str(problem) for problem in info.problems]


def code(path: Path) -> list[ImageOffset]:
    """Return the offsets of a file's code."""
    image = ElfFileContents(path.read_bytes(), str(path)).image
    base = image.header_svma
    return [ImageOffset(at - base) for low, high in image.code_ranges for at in range(low, high)]


def _described(path: Path) -> dict[str, list[str]]:
    printed = run_command("image", "--debug-files", "--format", "json", path).stdout
    (image,) = json.loads(printed)["images"]
    return image["debug_files"]


def test_lines_of_a_split_program_are_those_of_the_whole_one(built):
    """At every offset, with all inlined calls."""
    whole = frames(built.whole)
    assert {"add", "leaf", "middle", "top", "times", "away"} <= {
        name for calls in whole.values() for name, _, _ in calls
    }
    assert frames(built.split) == whole


def test_lines_are_what_llvm_symbolizer_prints(built):
    symbolizer = shutil.which("llvm-symbolizer-19") or shutil.which("llvm-symbolizer")
    if symbolizer is None:
        pytest.skip("llvm-symbolizer is not installed; it is the peer here")
    base = ElfFileContents(built.split.read_bytes(), "split").image.header_svma
    seen = frames(built.split)
    printed = subprocess.run(
        [symbolizer, "--output-style=JSON", f"--obj={built.split}"],
        input="\n".join(hex(offset + base) for offset in seen),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    for (offset, calls), line in zip(seen.items(), printed, strict=True):
        theirs = [
            (one["FunctionName"], Path(one["FileName"]).name, one["Line"] or None)
            for one in json.loads(line)["Symbol"]
        ]
        assert (offset, theirs) == (offset, calls)


def test_only_units_that_are_needed_are_read(built):
    """The other one is missing, which is no problem yet."""
    away = built.split.with_name("first.dwo")
    away.rename(away.with_suffix(".away"))
    try:
        info = DebugInformation(ImageResolver(), IndexCache(None))
        image = path_image(str(built.split), None)[0]
        rows = frames(built.whole)
        second = [offset for offset, calls in rows.items() if calls[0][1] == "second.c"]
        for offset in second:
            assert info.frames(image, ImageOffset(offset))
        assert isinstance(info.index(image), SplitIndex)
        assert info.problems == []
        info.frames(image, ImageOffset(next(row for row in rows if row not in second)))
        assert len(info.problems) == 1
    finally:
        away.with_suffix(".away").rename(away)


@pytest.mark.parametrize("packer", ["llvm-dwp", "dwp"])
def test_a_package_has_all_units(built, moved, packer, tmp_path):
    program = shutil.which(f"{packer}-19") or shutil.which(packer)
    if program is None or (packer == "dwp" and (built.cpu, built.version) != ("x86_64", 4)):
        pytest.skip(f"no {packer} for this program is installed; GNU's has no DWARF 5")
    units = [
        shutil.copy(unit, tmp_path / f"{unit.stem}.dwo")
        for unit in built.split.parent.glob("*.away")
    ]
    package = moved.with_name("program.dwp")
    command = [program, *units, "-o", package]
    try:
        subprocess.run(command, cwd=tmp_path, check=True, timeout=10, capture_output=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        pytest.skip(f"{packer} cannot make a package of these units")
    assert frames(moved) == frames(built.whole)
    found = _described(moved)
    assert "2 of 2 split units found" in found["lines_are"]
    assert f"{package}: found (2 split units)" in found["attempts"]


def test_units_are_found_in_a_given_folder(built, moved, tmp_path):
    folder = tmp_path / "units"
    folder.mkdir()
    for unit in built.split.parent.glob("*.away"):
        shutil.copy(unit, folder / f"{unit.stem}.dwo")
    assert frames(moved, folder) == frames(built.whole)


def test_missing_units_are_problems_and_listed(moved):
    """The linked file has no lines of its own, or only what the compiler left in it."""
    printed = problems(moved)
    assert all("source lines of a split unit are missing (no such file" in text for text in printed)
    assert len(printed) == 2
    found = _described(moved)
    assert "0 of 2 split units found" in found["lines_are"]
    assert [
        attempt for attempt in found["attempts"] if attempt.startswith("first.dwo: no such file")
    ]


def test_a_unit_of_another_build_is_not_used(built, moved, tmp_path):
    """It has another id."""
    folder = tmp_path / "units"
    folder.mkdir()
    for name, other in (("first", "second"), ("second", "first")):
        shutil.copy(built.split.with_name(f"{other}.away"), folder / f"{name}.dwo")
    assert not frames(moved, folder)
    document = run_command("image", "--debug-files", "--search", folder, moved).stdout
    assert f"{folder}/first.dwo: is another image's" in document


def test_indices_of_units_are_cached(built, tmp_path):
    folder = IndexFolder(tmp_path / "indices")
    assert frames(built.split, folder=folder) == frames(built.split, folder=folder)
    assert len(list((tmp_path / "indices").glob("object-*"))) == 2


def test_damaged_units_are_a_value_or_an_error(built):
    """Both in the linked file and in a unit; reading ends, and raises nothing else."""
    chosen = random.Random(12)  # noqa: S311 - no secret
    paths = [built.split, next(built.split.parent.glob("first.dwo"))]
    for path in paths:
        contents = ElfFileContents(path.read_bytes(), path.name)
        whole = {
            section.name: bytes(contents.read_section(section))
            for section in contents.image.sections
            if section.name.startswith(".debug")
        }
        for _ in range(300):
            name = chosen.choice([section for section, content in whole.items() if content])
            data = bytearray(whole[name])
            for _ in range(chosen.randrange(1, 4)):
                data[chosen.randrange(len(data))] = chosen.choice((0, 1, 0x7F, 0x80, 0xFF))
            sections = {**whole, name: bytes(data)}
            reader = DwarfReader(
                lambda one, sections=sections: memoryview(sections.get(one, b"")),
                "damaged",
                little_endian=contents.image.layout.little_endian,
            )
            with suppress(FormatError, MemoryReadError):
                assert all(unit.file_name is not None for unit in reader.skeletons())
            with suppress(FormatError, MemoryReadError):
                reader.split_units()
