"""Indices are built in a worker, once, and cached, also with concurrent builders."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from machtrace.errors import DebugInformationError
from machtrace.lines import index_builder, index_cache
from machtrace.lines.index_builder import BuildLimits, build_index
from machtrace.lines.index_cache import IndexCache, IndexFolder, default_index_folder, index_name
from machtrace.lines.symcache import SymCache
from machtrace.model.address import FileOffset
from tests.support.compilers.debug_programs import INLINED_C, debug_file
from tests.support.compilers.executables import compile_elf

BUILD_ID = "-Wl,--build-id=sha1"


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """A small ELF with its DWARF inside."""
    folder = tmp_path_factory.mktemp("indexed")
    source = folder / "inlined.c"
    source.write_text(INLINED_C)
    options = ("-g", "-O1", "-shared", BUILD_ID)
    return compile_elf([source], folder / "a.so", target="x86_64-linux-musl", options=options)


@pytest.fixture
def file(program):
    """The ELF, opened."""
    return debug_file(program)


@pytest.fixture
def folder(tmp_path):
    """An empty folder of indices."""
    return IndexFolder(tmp_path / "indices")


def outer(file):
    """The offset of ``outer``."""
    cache = SymCache(build_index(file))
    names = [cache.function_name(number) for number in range(cache.function_count)]
    return cache.function_entry(names.index("outer"))


@pytest.mark.peer
def test_an_index_is_built_once(file, folder, monkeypatch):
    """The second time it is read from the folder, by its name."""
    first = IndexCache(folder).index(file)

    def nothing(*_):
        raise AssertionError("it was made again")

    monkeypatch.setattr(index_cache, "build_index", nothing)
    second = IndexCache(folder).index(debug_file(file.path))

    offset = outer(file)
    assert first.inlined(offset) == second.inlined(offset) != ()
    assert [path.suffix for path in folder.directory.iterdir() if path.suffix] == [".symcache"]


@pytest.mark.peer
def test_without_a_folder_nothing_is_written(file, monkeypatch, tmp_path):
    """The index is in memory."""
    monkeypatch.chdir(tmp_path)

    assert IndexCache(None).index(file).inlined(outer(file))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.peer
def test_a_folder_that_cannot_be_created_is_not_an_error(file, tmp_path):
    """The home directory is read-only, or a file has the folder's name."""
    (tmp_path / "file").write_bytes(b"")

    index = IndexCache(IndexFolder(tmp_path / "file" / "indices")).index(file)

    assert index.inlined(outer(file))


@pytest.mark.peer
def test_a_malformed_index_is_rebuilt(file, folder):
    """A truncated one, and one of another image."""
    IndexCache(folder).index(file)
    path = folder.path(index_name(file))
    good = path.read_bytes()
    for bad in (good[: len(good) // 2], b"", good[:8] + bytes(16) + good[24:]):
        path.write_bytes(bad)
        assert IndexCache(folder).index(file).inlined(outer(file))
        assert path.read_bytes() == good


@pytest.mark.peer
def test_files_with_one_identifier_have_separate_indices(file):
    """A dSYM can be rebuilt with more in it."""
    more = replace(file, data=memoryview(bytes(file.data) + b"\0"))

    assert index_name(more) != index_name(file)


@pytest.mark.peer
def test_concurrent_processes_build_one_index(program, tmp_path):
    """Each gets a whole index, and one of them builds it."""
    code = (
        "import sys; from pathlib import Path\n"
        "from machtrace.lines import index_cache\n"
        "from machtrace.lines.index_cache import IndexFolder\n"
        "from tests.support.compilers.debug_programs import debug_file\n"
        "build = index_cache.build_index\n"
        "def counted(*arguments):\n"
        "    print('made', flush=True)\n"
        "    return build(*arguments)\n"
        "index_cache.build_index = counted\n"
        "cache = index_cache.IndexCache(IndexFolder(Path(sys.argv[2])))\n"
        "assert cache.index(debug_file(Path(sys.argv[1]))).columns\n"
    )
    command = [sys.executable, "-c", code, str(program), str(tmp_path / "indices")]
    environment = index_builder.worker_environment()

    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(4)
    ]
    said = [process.communicate()[0] for process in started]

    assert [process.returncode for process in started] == [0] * 4
    assert sum(text.count("made") for text in said) == 1


@pytest.mark.peer
def test_concurrent_threads_build_one_index(file, folder, monkeypatch):
    """Locks exclude the threads of one process, too."""
    made = []

    def counted(*arguments):
        made.append(arguments)
        return build_index(*arguments)

    monkeypatch.setattr(index_cache, "build_index", counted)
    with ThreadPoolExecutor(4) as pool:
        indices = list(pool.map(lambda _: IndexCache(folder).index(file), range(4)))

    assert len(made) == 1
    assert all(index.inlined(outer(file)) for index in indices)


def test_the_least_recently_used_index_is_evicted_first(folder):
    """The one that was just written is never evicted."""
    limited = IndexFolder(folder.directory, limit=250)
    for age, name in enumerate(("new", "middle", "old")):
        assert limited.write(name, b"x" * 100)
        os.utime(limited.path(name), (time.time() - 100 * age,) * 2)
    limited.used("old")

    limited.evict(keep=["new"])

    assert {path.stem for path in folder.directory.iterdir()} == {"new", "old"}

    IndexFolder(folder.directory, limit=0).evict(keep=["new"])

    assert {path.stem for path in folder.directory.iterdir()} == {"new"}


@pytest.mark.peer
def test_an_index_that_is_evicted_while_it_is_mapped_can_be_read(file, folder):
    """Its bytes exist until the last mapping is closed."""
    index = IndexCache(folder).index(file)
    IndexFolder(folder.directory, limit=0).evict(keep=["another"])

    assert not folder.path(index_name(file)).exists()
    assert index.inlined(outer(file))


def test_leftovers_of_dead_builders_are_removed_after_a_day(folder):
    """Until then a builder may still be writing."""
    folder.write("one", b"")
    for name, age in ((".unfinished-dead", 2 * 86400), (".unfinished-alive", 10)):
        (folder.directory / name).write_bytes(b"")
        os.utime(folder.directory / name, (time.time() - age,) * 2)

    folder.evict(keep=["one"])

    assert not (folder.directory / ".unfinished-dead").exists()
    assert (folder.directory / ".unfinished-alive").exists()


@pytest.mark.peer
def test_the_worker_reads_only_the_slice_of_a_fat_file(file, tmp_path):
    data = b"\0" * 4096 + bytes(file.data) + b"rest"
    path = tmp_path / "fat"
    path.write_bytes(data)
    part = replace(file, path=str(path), slice_offset=FileOffset(4096))

    assert build_index(part) == build_index(file)


@pytest.mark.peer
def test_bytes_that_are_not_in_a_file_are_passed_to_the_worker(file, tmp_path):
    """A member of an archive never is in one; a file can be replaced while it is mapped."""
    other = tmp_path / "other"
    other.write_bytes(b"something else")

    for path in (other, tmp_path / "missing"):
        assert build_index(replace(file, path=str(path))) == build_index(file)


@pytest.mark.peer
@pytest.mark.parametrize(
    ("section", "value"),
    [(".debug_info", b"\xff"), (".debug_abbrev", b"\xff")],
    ids=str,
)
def test_an_error_of_the_library_has_the_path_and_its_reason(file, section, value):
    where = file.contents.image.section(section)
    data = bytearray(file.data)
    data[where.offset : where.offset + where.size] = value * where.size
    bad = replace(file, data=memoryview(data))

    with pytest.raises(DebugInformationError) as caught:
        build_index(bad)
    assert file.path in str(caught.value)
    assert "cannot be read" in caught.value.reason


@pytest.mark.peer
@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space hold on Linux")
def test_a_child_that_runs_out_of_memory_is_an_error(file):
    """It cannot even load the library here."""
    limits = BuildLimits(memory=1 << 24, memory_per_byte=0)

    with pytest.raises(DebugInformationError):
        build_index(file, limits)


@pytest.mark.peer
def test_a_child_that_takes_too_long_is_killed(file):
    """By the wall clock, for a child that only waits."""
    limits = BuildLimits(processor_seconds=0.01, processor_seconds_per_mib=0, patience=0.1)

    with pytest.raises(DebugInformationError, match="within"):
        build_index(file, limits)


@pytest.mark.peer
@pytest.mark.parametrize(("code", "reason"), [("os.abort()", "SIGABRT"), ("os._exit(9)", "9")])
def test_a_child_that_crashes_is_an_error(file, monkeypatch, tmp_path, code, reason):
    """A library in native code may crash on malformed input."""
    (tmp_path / "dying.py").write_text(f"import os\n{code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(index_builder, "_WORKER", "dying")

    with pytest.raises(DebugInformationError, match=reason):
        build_index(file)


@pytest.mark.peer
@pytest.mark.skipif(sys.platform != "linux", reason="what ends the child is Linux's")
def test_an_endless_child_is_ended_by_its_processor_limit(file, monkeypatch, tmp_path):
    """Also after its parent has ended."""
    (tmp_path / "endless.py").write_text(
        "import json, sys\n"
        "from machtrace.lines.worker import IndexTask, limit_process\n"
        "limit_process(IndexTask(**json.loads(sys.argv[1])))\n"
        "while True: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(index_builder, "_WORKER", "endless")

    with pytest.raises(DebugInformationError, match=r"SIGXCPU|SIGKILL"):
        build_index(file, BuildLimits(processor_seconds=1, patience=100))


def test_waiting_for_another_builder_is_bounded(folder):
    """A stopped process can hold the lock."""
    with folder.locked("one", 1):
        start = time.monotonic()
        with folder.locked("one", 0.1):
            assert time.monotonic() - start >= 0.1


@pytest.mark.peer
@pytest.mark.parametrize(("name", "value"), [("executable", ""), ("frozen", True)])
def test_without_an_interpreter_to_start_there_is_an_error(file, monkeypatch, name, value):
    """As in programs that embed Python, where ``sys.executable`` is the program."""
    monkeypatch.setattr(sys, name, value, raising=False)

    with pytest.raises(DebugInformationError, match="no Python executable"):
        build_index(file)


@pytest.mark.peer
def test_an_index_that_would_be_too_large_is_not_built(file):
    """Nothing of it reaches this process."""
    with pytest.raises(DebugInformationError, match="allowed"):
        build_index(file, BuildLimits(output=100, output_per_byte=0))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"MACHTRACE_CACHE": "/c"}, "/c/debug-indices"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/machtrace/debug-indices"),
        ({"HOME": "/home/a"}, "/home/a/.cache/machtrace/debug-indices"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="of Linux's folders")
def test_the_folder_is_set_by_a_variable_or_the_platform(monkeypatch, environment, expected):
    for name in ("MACHTRACE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert str(default_index_folder()) == expected
