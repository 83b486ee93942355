"""Lines of programs whose DWARF is in object files and static libraries."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from machtrace.errors import DebugInformationError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.stabs import object_stabs
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.images.debug_map import DebugMap, LinkedObject
from machtrace.images.resolver import ImageResolver
from machtrace.images.search_record import Outcome
from machtrace.lines import index_builder
from machtrace.lines.debug_information import DebugInformation
from machtrace.lines.debug_map import DebugMapIndex, mapped_functions
from machtrace.lines.index import DebugIndex
from machtrace.lines.index_builder import BuildLimits, ObjectBytes
from machtrace.lines.index_cache import IndexCache, IndexFolder
from machtrace.model.address import Avma, ImageOffset
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.symbol import FrameStatus
from tests.support.compilers.executables import compile_object, link_objects
from tests.support.writers.debug_files import static_archive, thin_archive, write_dsym

MAIN = """\
static inline __attribute__((always_inline)) int twice(int x) {
  return x * 2 + 1;
}
int helper(int);
int other(int x) {
  int y = twice(x);
  y += helper(y);
  return y;
}
static __attribute__((noinline)) int hidden(int x) {
  return helper(x) * 3;
}
int main(void) {
  return other(3) + hidden(4);
}
"""
HELPER = """\
static __attribute__((noinline)) int hidden(int x) {
  return x ^ 5;
}
int helper(int x) {
  return hidden(x) - 7;
}
int another(int x) {
  return x + hidden(x);
}
"""
MEMBER = "helper of a long name.o"
LINKED_AT = 1_700_000_000


def build(folders, arch):
    """Compile the objects and link the program."""
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles the programs that are read here")
    folder = folders.mktemp("map")
    for name, text in (("main", MAIN), ("helper", HELPER)):
        (folder / f"{name}.c").write_text(text)
        path = folder / f"{name}.o"
        compile_object(folder / f"{name}.c", path, arch=arch, options=("-g", "-O1"))
        os.utime(path, (LINKED_AT, LINKED_AT))
    return link_objects([folder / "main.o", folder / "helper.o"], folder / "program", arch=arch)


@pytest.fixture(scope="session")
def arm64_program(tmp_path_factory):
    """The program for arm64."""
    return build(tmp_path_factory, Arch.ARM64)


@pytest.fixture(scope="session", params=[Arch.ARM64, Arch.X86_64], ids=lambda arch: arch.value)
def made(request, tmp_path_factory):
    """The program as it was built; tests do not change it."""
    if request.param is Arch.ARM64:
        return request.getfixturevalue("arm64_program")
    return build(tmp_path_factory, request.param)


@pytest.fixture
def program(arm64_program, tmp_path):
    """A build folder that tests may change, at the path at which it was linked."""
    folder, original = arm64_program.parent, tmp_path / "kept"
    shutil.copytree(folder, original)
    yield arm64_program
    shutil.rmtree(folder)
    shutil.copytree(original, folder)


def image_of(path):
    """Return the image of a Mach-O file."""
    contents = MachOFileContents(path.read_bytes(), str(path))
    return BinaryImage(
        path=str(path),
        uuid=contents.image.uuid,
        arch=contents.image.arch,
        format=ImageFormat.MACHO,
        load_address=Avma(contents.image.header_svma),
        header_svma=contents.image.header_svma,
        size=0x4000,
    )


def index_of(path, search=(), indices=None):
    """Return the lines of a program with a debug map."""
    lines = ImageResolver.of(search).files(image_of(path)).lines
    assert isinstance(lines, DebugMap)
    return DebugMapIndex(lines, IndexCache(None) if indices is None else indices)


def functions(path):
    """Return the ranges of a program's functions, by linkage name and source."""
    contents = MachOFileContents(path.read_bytes(), str(path))
    mapped = mapped_functions(contents)
    # The linker takes the object files in any order.
    sources = [Path(LinkedObject.parse(*stab).path).stem for stab in object_stabs(contents)]
    sources = ["helper" if source == "libh" else source for source in sources]
    places = zip(mapped.starts.tolist(), mapped.sizes.tolist(), strict=True)
    return {
        (mapped.linkage_name(number), sources[mapped.object_ids[number]]): range(
            start, start + size
        )
        for number, (start, size) in enumerate(places)
    }


def lines_in(index, places):
    """Return the innermost frames of a range of addresses."""
    frames = [index.inlined(ImageOffset(offset)) for offset in places]
    return {(f[0].name, Path(f[0].location.path).name, f[0].location.line) for f in frames if f}


@pytest.mark.peer
def test_functions_have_the_addresses_of_their_symbols(made):
    """The map has the address and the object file of each defined function."""
    contents = MachOFileContents(made.read_bytes(), str(made))
    symbols = parse_symbols(contents)
    rows = np.flatnonzero(symbols.is_code)
    base = contents.image.header_svma
    known = {(symbols.name(int(row)), int(symbols.n_value[row]) - base) for row in rows.tolist()}
    ranges = functions(made)
    wanted = {
        ("_main", "main"),
        ("_other", "main"),
        ("_hidden", "main"),
        ("_helper", "helper"),
        ("_hidden", "helper"),
    }

    assert wanted <= set(ranges)
    assert {(name, places.start) for (name, _), places in ranges.items()} <= known
    assert all(len(places) > 0 for places in ranges.values())


@pytest.mark.peer
def test_lines_equal_those_of_the_sources(made):
    """With two functions of one name, and an inlined call."""
    index, places = index_of(made), functions(made)

    helper = lines_in(index, places["_helper", "helper"])
    assert {("helper", "helper.c", 5)} <= helper
    assert {line for _, _, line in helper} <= {0, 4, 5}
    assert {line for _, _, line in lines_in(index, places["_hidden", "main"])} <= {0, 10, 11}
    assert {line for _, _, line in lines_in(index, places["_hidden", "helper"])} <= {0, 1, 2}
    chains = [index.inlined(ImageOffset(offset)) for offset in places["_other", "main"]]
    named = {tuple((call.name, call.location.line) for call in chain) for chain in chains}
    assert (("twice", 2), ("other", 6)) in named


@pytest.mark.peer
def test_every_address_has_the_linked_functions_start(made):
    index = index_of(made)
    for places in functions(made).values():
        # Padding behind a function is not in its DWARF.
        for offset in (places.start, *filter(index.inlined, places)):
            assert places.start == index.function_start(ImageOffset(offset))


@pytest.mark.peer
def test_addresses_outside_of_functions_have_no_lines(made):
    """Between functions, before the first, after the last, and beyond the address space."""
    index = index_of(made)
    inside = {offset for places in functions(made).values() for offset in places}
    first, last = min(inside), max(inside)
    outside = [o for o in range(first - 64, last + 64) if o not in inside]

    assert not any(index.inlined(ImageOffset(offset)) for offset in (*outside, -1, 1 << 70))
    columns = index.columns(np.array([*outside, 2**64 - 1], np.uint64))
    assert {-1} == set(columns.location.tolist())


@pytest.mark.peer
def test_columns_equal_single_frames(made):
    """The same lines, files, functions and depths, before and after more is read."""
    index = index_of(made)
    places = functions(made)
    order = sorted(places.values(), key=lambda one: one.start, reverse=True)
    early = index.columns(np.array(list(order[0]), np.uint64))
    offsets = [offset for one in order for offset in one]
    columns = index.columns(np.array(offsets, np.uint64))

    assert early.location.tolist() == columns.location[: len(order[0])].tolist()
    chains = index.chains(columns.location)
    for row, offset in enumerate(offsets):
        frames = index.inlined(ImageOffset(offset))
        if not frames:
            assert columns.location[row] == -1
            continue
        assert len(frames) == columns.depth[row] + 1
        assert (frames[0].location.line or 0) == columns.line[row]
        assert frames[0].location.path == index.file_path(int(columns.file[row]))
        called = [
            index.function_name(int(number))
            for number in chains.function[chains.first[row] : chains.first[row + 1]]
        ]
        assert called == [frame.linkage_name for frame in frames]


@pytest.mark.peer
def test_lines_equal_those_of_dsymutil_and_llvm_symbolizer(made, tmp_path):
    """At every address of the program, by their dSYM of it."""
    tools = {name: shutil.which(f"{name}-19") for name in ("dsymutil", "llvm-symbolizer")}
    if None in tools.values():
        pytest.skip("dsymutil and llvm-symbolizer are not installed; they are the peers here")
    bundle = tmp_path / "program.dSYM"
    subprocess.run([tools["dsymutil"], made, "-o", bundle], check=True, capture_output=True)
    index, base = index_of(made), image_of(made).header_svma
    offsets = sorted(offset for places in functions(made).values() for offset in places)
    said = subprocess.run(
        [tools["llvm-symbolizer"], "--output-style=JSON", "--no-demangle",
         f"--obj={bundle}/Contents/Resources/DWARF/program"],
        input="".join(f"{offset + base:#x}\n" for offset in offsets),
        check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip

    for offset, line in zip(offsets, said, strict=True):
        theirs = [
            (call["FunctionName"], call["FileName"], call["Line"])
            for call in json.loads(line)["Symbol"]
            if call["FileName"]  # otherwise it is from the symbol table
        ]
        ours = [
            (call.linkage_name, call.location.path, call.location.line or 0)
            for call in index.inlined(ImageOffset(offset))
        ]
        assert theirs == ours


# --- changed object files ---


@pytest.mark.peer
def test_a_changed_object_file_is_not_used(program):
    """It is reported; lines of the other object file are returned."""
    path = program.parent / "helper.o"
    os.utime(path, (LINKED_AT + 5, LINKED_AT + 5))
    index, places = index_of(program), functions(program)

    assert index.inlined(ImageOffset(places["_helper", "helper"].start)) == ()
    assert index.inlined(ImageOffset(places["_main", "main"].start))
    times = "linked at 2023-11-14 22:13:20, is of 2023-11-14 22:13:25"
    (told,) = index.record.attempts
    assert f"{path}: was changed after it was linked ({times})" == str(told)


@pytest.mark.peer
@pytest.mark.parametrize("damage", ["gone", "cut", "empty", "noise", "no dwarf"])
def test_a_damaged_object_file_affects_only_its_own_lines(program, damage):
    path = program.parent / "helper.o"
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "no dwarf":
        path.write_bytes(data.replace(b"__debug_info", b"__other_info"))
    else:
        path.write_bytes({"cut": data[:700], "empty": b"", "noise": data[:64] + data[900:]}[damage])
    if path.exists():
        os.utime(path, (LINKED_AT, LINKED_AT))
    index, places = index_of(program), functions(program)

    assert index.inlined(ImageOffset(places["_helper", "helper"].start)) == ()
    assert index.inlined(ImageOffset(places["_main", "main"].start))
    assert len(index.record.attempts) == 1
    assert str(path) in str(index.record.attempts[0])


@pytest.mark.peer
@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_unusable_object_files_are_reported_once(program, damage):
    """Only those that were needed, with the remedy."""
    path = program.parent / "helper.o"
    if damage == "gone":
        path.unlink()
    else:
        os.utime(path, (LINKED_AT + 5, LINKED_AT + 5))
    image = image_of(program)
    information, places = DebugInformation(ImageResolver.of(), IndexCache(None)), functions(program)

    assert information.frames(image, ImageOffset(places["_main", "main"].start))
    assert information.problems == []
    for _ in range(2):
        assert not information.frames(image, ImageOffset(places["_helper", "helper"].start))
    (problem,) = information.problems
    assert isinstance(problem, DebugInformationError)
    assert str(path) in str(problem)
    assert "dsymutil" in problem.remedy


@pytest.mark.peer
def test_without_any_object_file_there_are_no_lines(program):
    """The attempts are recorded."""
    for path in program.parent.glob("*.o"):
        path.unlink()

    files = ImageResolver().files(image_of(program))
    assert FrameStatus.MISSING_FILE is files.lines
    told = [attempt.location for attempt in files.attempts if "object file" in attempt.detail]
    assert {str(program.parent / name) for name in ("main.o", "helper.o")} == set(told)


@pytest.mark.peer
def test_moved_object_files_are_found_on_the_search_path(program, tmp_path):
    """In a folder with all of them, or in one that replaces the root of paths."""
    flat, rooted = tmp_path / "flat", tmp_path / "root"
    for folder in (flat, Path(f"{rooted}{program.parent}")):
        folder.mkdir(parents=True)
        for path in program.parent.glob("*.o"):
            shutil.copy2(path, folder)
    for path in program.parent.glob("*.o"):
        path.unlink()

    places = functions(program)
    for search in (flat, rooted):
        index = index_of(program, search)
        assert ("helper", "helper.c", 5) in lines_in(index, places["_helper", "helper"])


def dsym_of(program):
    """Make a dSYM beside a program and return its DWARF."""
    tool = shutil.which("dsymutil-19") or shutil.which("dsymutil")
    if tool is None:
        pytest.skip("dsymutil is not installed; it makes the dSYM here")
    subprocess.run([tool, program], check=True, capture_output=True)
    return Path(f"{program}.dSYM/Contents/Resources/DWARF/program")


@pytest.mark.peer
def test_a_dsym_is_preferred_to_object_files(program):
    dwarf = dsym_of(program)

    assert str(dwarf) == ImageResolver().files(image_of(program)).lines.path


@pytest.mark.peer
@pytest.mark.parametrize("whole", [False, True], ids=["debug map", "other dSYM"])
def test_a_truncated_dsym_does_not_hide_other_sources(program, tmp_path, whole):
    """Its error is reported; lines come from another dSYM, or from the object files."""
    good = dsym_of(program)
    cut = write_dsym(tmp_path / "given.dSYM", "program", good.read_bytes()[:-400])
    if not whole:
        good.unlink()
    information = DebugInformation(ImageResolver.of(tmp_path / "given.dSYM"), IndexCache(None))

    index = information.index(image_of(program))

    assert isinstance(index, DebugIndex if whole else DebugMapIndex)
    ((_, places),) = [item for item in functions(program).items() if item[0][0] == "_main"]
    assert lines_in(index, places)
    assert [DebugInformationError] == [type(problem) for problem in information.problems]
    assert str(cut) in str(information.problems[0])


# --- without times, as lld writes them ---


def without_times(program):
    """Set the object files' times in the debug map to 0, as some linkers do."""
    contents = MachOFileContents(program.read_bytes(), str(program))
    symbols = parse_symbols(contents)
    data = bytearray(program.read_bytes())
    for row in np.flatnonzero(symbols.n_type == 0x66).tolist():
        at = contents.image.symtab.symoff + 16 * row + 8
        data[at : at + 8] = bytes(8)
    program.write_bytes(data)


@pytest.mark.peer
def test_without_times_instructions_are_compared(program):
    """An older object file of another source is used for functions with equal instructions."""
    without_times(program)
    folder = program.parent
    (folder / "helper.c").write_text(HELPER.replace("x ^ 5", "x * 77 + 5"))
    arch = image_of(program).arch
    compile_object(folder / "helper.c", folder / "helper.o", arch=arch, options=("-g", "-O1"))
    os.utime(folder / "helper.o", (LINKED_AT, LINKED_AT))
    index, places = index_of(program), functions(program)

    assert index.inlined(ImageOffset(places["_hidden", "helper"].start)) == ()
    assert ("helper", "helper.c", 5) in lines_in(index, places["_helper", "helper"])
    assert [attempt.outcome for attempt in index.record.attempts] == [Outcome.CHANGED]


@pytest.mark.peer
def test_without_times_newer_object_files_are_not_used(program):
    """They were compiled again, and not linked."""
    without_times(program)
    later = program.stat().st_mtime + 100
    os.utime(program.parent / "helper.o", (later, later))
    index, places = index_of(program), functions(program)

    assert index.inlined(ImageOffset(places["_helper", "helper"].start)) == ()
    assert index.inlined(ImageOffset(places["_main", "main"].start))
    assert "newer than the image" in str(index.record.attempts[0])


# --- static libraries ---


def archived(program, data, *, modified=LINKED_AT):
    """Rewrite the debug map: ``helper.o`` is a member of ``libh.a``, which contains ``data``."""
    archive = program.parent / "libh.a"
    archive.write_bytes(data)
    os.utime(archive, (modified, modified))
    (program.parent / "helper.o").rename(program.parent / MEMBER)
    contents = MachOFileContents(program.read_bytes(), str(program))
    symtab = contents.image.symtab
    data = bytearray(program.read_bytes())
    symbols = parse_symbols(contents)
    row = next(
        row for row in np.flatnonzero(symbols.n_type == 0x66).tolist()
        if symbols.name(row).endswith("helper.o")
    )  # fmt: skip
    # A string table of our own at the end of the file: the old one has no room.
    strings = data[symtab.stroff : symtab.stroff + symtab.strsize]
    place = len(strings)
    strings += f"{archive}({MEMBER})".encode() + b"\0"
    at = next(contents.image.commands_of(2)).offset + 16
    data[at : at + 8] = len(data).to_bytes(4, "little") + len(strings).to_bytes(4, "little")
    data[symtab.symoff + 16 * row :][:4] = place.to_bytes(4, "little")
    data[symtab.symoff + 16 * row : symtab.symoff + 16 * row + 4] = place.to_bytes(4, "little")
    program.write_bytes(data + strings)


@pytest.mark.peer
@pytest.mark.parametrize("kind", ["bsd", "gnu", "thin"])
def test_lines_of_members_of_static_libraries(program, kind):
    """In every format of archive; another object file of the same name comes first."""
    helper = (program.parent / "helper.o").read_bytes()
    main = (program.parent / "main.o").read_bytes()
    if kind == "thin":
        data = thin_archive([(MEMBER, LINKED_AT, len(helper))])
    else:
        members = [("x.o", 5, b"odd"), (MEMBER, LINKED_AT, main), (MEMBER, LINKED_AT, helper)]
        data = static_archive(members, long_names=kind)
    archived(program, data)
    index, places = index_of(program), functions(program)

    assert ("helper", "helper.c", 5) in lines_in(index, places["_helper", "helper"])
    assert index.record.attempts == []


@pytest.mark.peer
def test_a_member_of_another_time_is_not_used(program):
    """The library was rebuilt."""
    helper = (program.parent / "helper.o").read_bytes()
    archived(program, static_archive([(MEMBER, 7, helper)]), modified=8)
    index, places = index_of(program), functions(program)

    assert index.inlined(ImageOffset(places["_helper", "helper"].start)) == ()
    assert [attempt.outcome for attempt in index.record.attempts] == [Outcome.CHANGED]


@pytest.mark.peer
@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        (static_archive([("other.o", 1, b"")]), Outcome.NO_FILE),
        (b"!<arch>\n" + b"x" * 80, Outcome.MALFORMED),
        (b"not an archive", Outcome.MALFORMED),
    ],
    ids=["without it", "damaged", "no archive"],
)
def test_a_library_without_the_member_is_reported_in_one_line(program, data, outcome):
    archived(program, data)
    index, places = index_of(program), functions(program)

    assert index.inlined(ImageOffset(places["_helper", "helper"].start)) == ()
    assert outcome is index.record.attempts[0].outcome


@pytest.mark.peer
def test_members_before_the_damage_of_a_library_are_used(program):
    helper = (program.parent / "helper.o").read_bytes()
    archived(program, static_archive([(MEMBER, LINKED_AT, helper)]) + b"x" * 80)
    index, places = index_of(program), functions(program)

    assert ("helper", "helper.c", 5) in lines_in(index, places["_helper", "helper"])
    assert [attempt.outcome for attempt in index.record.attempts] == [Outcome.MALFORMED]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/b/x.o", ("/b/x.o", None)),
        ("/b/libx.a(x.o)", ("/b/libx.a", "x.o")),
        ("/b (1)/x.o", ("/b (1)/x.o", None)),
        ("/b (1)/libx.a(a(b).o)", ("/b (1)/libx.a(a", "b).o")),
        ("(x)", ("(x)", None)),
        ("", ("", None)),
    ],
)
def test_names_of_object_files(text, expected):
    """As linkers write them; brackets may be part of a path."""
    linked = LinkedObject.parse(text, 5)
    assert (linked.path, linked.member) == expected
    assert text == str(linked)


# --- indices ---


@pytest.mark.peer
def test_indices_are_cached_by_the_contents_of_object_files(program, tmp_path, monkeypatch):
    """The second time no child is started; a changed object file has another index."""
    indices = IndexCache(IndexFolder(tmp_path / "indices"))
    offset = ImageOffset(functions(program)["_helper", "helper"].start)
    first = index_of(program, indices=indices).inlined(offset)
    assert first

    monkeypatch.setattr(
        index_builder.subprocess, "run", lambda *_, **__: pytest.fail("a child was started")
    )
    assert first == index_of(program, indices=indices).inlined(offset)


@pytest.mark.peer
def test_many_object_files_cost_one_scan_of_the_folder(made, tmp_path, monkeypatch):
    """Each index is mapped from the folder, and none of the batch is evicted."""
    folder = IndexFolder(tmp_path / "indices", limit=0)
    scans, evict = [], IndexFolder.evict
    monkeypatch.setattr(
        IndexFolder, "evict", lambda self, *, keep: scans.append(keep) or evict(self, keep=keep)
    )
    objects = [ObjectBytes(one, (made.parent / one).read_bytes()) for one in ("main.o", "helper.o")]

    indices = IndexCache(folder).indices(objects)

    assert [len(keep) for keep in scans] == [2]
    assert sorted(index.source for index in indices) == sorted(
        str(path) for path in folder.directory.iterdir()
    )


@pytest.mark.peer
def test_a_child_that_dies_costs_one_object_file(made, monkeypatch):
    """The others of its batch have their indices from the next child."""
    objects = [(made.parent / name).read_bytes() for name in ("main.o", "helper.o")]
    killer = b"kill"
    child = index_builder._WORKER  # noqa: SLF001
    code = (
        "import os, sys\n"
        f"import {child} as child\n"
        "real = child.with_index\n"
        f"child.with_index = lambda data, *rest: os.abort() if data == {killer!r} "
        "else real(data, *rest)\n"
        "sys.exit(child.main())\n"
    )
    real = subprocess.run

    def run(command, **options):
        return real([command[0], "-P", "-c", code, *command[4:]], **options)

    monkeypatch.setattr(index_builder.subprocess, "run", run)
    made_of = [
        ObjectBytes("first", objects[0]),
        ObjectBytes("bad", b"\xcf\xfa\xed\xfe" + bytes(10)),
        ObjectBytes("killer", killer),
        ObjectBytes("last", objects[1]),
    ]
    found = IndexCache(None).indices(made_of)

    assert [type(one).__name__ for one in found] == ["SymCache", "str", "str", "SymCache"]
    assert "died" in found[2]


@pytest.mark.peer
@pytest.mark.parametrize(("name", "value"), [("executable", ""), ("frozen", True)])
def test_without_an_interpreter_to_start_every_object_file_has_the_reason(
    made, monkeypatch, name, value
):
    """As in programs that embed Python, where ``sys.executable`` is the program."""
    monkeypatch.setattr(sys, name, value, raising=False)
    monkeypatch.setattr(
        index_builder.subprocess, "run", lambda *_, **__: pytest.fail("a child was started")
    )
    data = (made.parent / "main.o").read_bytes()

    found = IndexCache(None).indices([ObjectBytes("first", data), ObjectBytes("second", data)])

    assert len(found) == 2
    assert all("no Python executable" in one for one in found)


@pytest.mark.peer
def test_a_child_that_takes_too_long_is_killed(made):
    """Each object file that it did not finish is skipped, in bounded time."""
    limits = BuildLimits(processor_seconds=0.001, processor_seconds_per_mib=0, patience=1)
    data = (made.parent / "main.o").read_bytes()

    found = IndexCache(None, limits=limits).indices([ObjectBytes("a", data)])
    assert isinstance(found[0], str)


@pytest.mark.peer
def test_a_dsym_of_another_build_is_skipped_for_the_object_files(program):
    data = program.read_bytes()
    uuid = image_of(program).uuid
    other = data.replace(uuid.bytes, bytes(reversed(uuid.bytes)))
    write_dsym(Path(f"{program}.dSYM"), "program", other)

    assert isinstance(ImageResolver().files(image_of(program)).lines, DebugMap)
