"""Images of live processes: at their addresses, and readable after changes to their files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from machtrace import open_target
from machtrace.errors import MemoryReadError
from machtrace.formats.elf.structs import PF_W
from machtrace.model.image import ImageFormat
from machtrace.model.stack import StopReason
from machtrace.targets.linux.process import LinuxProcessTarget
from machtrace.unwinder.unwinder import unwind

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="takes root")


def look(pid):
    """Capture one snapshot."""
    with LinuxProcessTarget(pid) as target:
        return target.snapshot()


def image_of(snapshot, path):
    """Return the image loaded from ``path``."""
    (image,) = (image for image in snapshot.images if image.path == str(path))
    return image


def code(snapshot, image):
    """Return the image and address at which the main thread resumes, and the 16 bytes before."""
    (walked,) = unwind(snapshot)
    address = next(f.address for f in walked.addresses if f.address in image)
    return address, snapshot.memory.read(address - 16, 16)


def same_in_process(pid, address, data):
    """Return whether the process has the same bytes at that address."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address - 16)
        return memory.read(len(data)) == data


def test_images_equal_those_that_gdb_lists(start, gdb):
    """Every shared library of an interpreter by its path, with its code inside the image."""
    source = "import ssl, sqlite3; print('ready', flush=True); input()"
    process = start(sys.executable, "-c", source)
    snapshot = look(process.pid)
    listed = gdb(process.pid)["images"]
    assert len(listed) > 5
    paths = {os.path.realpath(image.path): image for image in snapshot.images}
    for path, (first, end) in listed.items():
        image = paths[os.path.realpath(path)]
        assert first in image
        assert end - 1 in image
    assert {image.format for image in snapshot.images} == {ImageFormat.ELF}
    # Nothing else, except for the program and the kernel's mappings.
    assert len(snapshot.images) == len(listed) + 2
    assert all(image.local_path in {None, image.path} for image in snapshot.images)


def test_load_addresses_and_build_ids_equal_those_of_the_map_and_readelf(start):
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("readelf is not installed")
    process = start(sys.executable, "-c", "print('ready', flush=True); input()")
    snapshot = look(process.pid)
    first = {}
    for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) > 5 and fields[5] not in first:
            first[fields[5]] = int(fields[0].split("-")[0], 16)
    checked = 0
    for image in snapshot.images:
        assert image.load_address == first[image.path]
        if image.path.startswith("/"):
            notes = subprocess.check_output([readelf, "-n", image.path], text=True)
            assert f"Build ID: {image.identifier}" in notes or image.uuid is None
            checked += image.uuid is not None
    assert checked >= 3


def test_code_is_readable_after_the_process_has_ended(build, start):
    """Code on a stack is read from its file; data that the process could change is not guessed."""
    process = start(build("undumpable"))
    snapshot = look(process.pid)
    process.kill()
    process.wait()
    image = image_of(snapshot, build("undumpable"))
    header = snapshot.memory.read(image.load_address, 4)
    assert bytes(header) == b"\x7fELF"
    from machtrace.formats.elf.contents import ElfMemoryContents

    elf = ElfMemoryContents(snapshot.memory, image.load_address, "image").image
    (data,) = (segment for segment in elf.load_segments if segment.flags & PF_W)
    with pytest.raises(MemoryReadError):
        snapshot.memory.read(data.address + image.slide, 8)


def test_a_deleted_program_can_be_opened(build, start, tmp_path):
    """Its file has no name any more."""
    program = tmp_path / "deleted"
    shutil.copy(build("undumpable"), program)
    process = start(program)
    program.unlink()
    snapshot = look(process.pid)
    image = image_of(snapshot, program)
    address, data = code(snapshot, image)
    assert same_in_process(process.pid, address, data)
    assert snapshot.process.path == str(program)
    process.kill()
    process.wait()
    assert image.local_path is not None
    assert Path(image.local_path).read_bytes() == build("undumpable").read_bytes()


def test_a_replaced_programs_new_file_is_not_used(build, start, tmp_path):
    program = tmp_path / "replaced"
    shutil.copy(build("undumpable"), program)
    process = start(program)
    program.unlink()
    shutil.copy(build("threads"), program)
    snapshot = look(process.pid)
    image = image_of(snapshot, program)
    address, data = code(snapshot, image)
    assert same_in_process(process.pid, address, data)
    assert unwind(snapshot)[0].stop.reason is StopReason.ROOT


def test_a_file_changed_after_the_snapshot_is_not_read(build, start, tmp_path):
    """No bytes are better than another file's."""
    program = tmp_path / "changed"
    shutil.copy(build("undumpable"), program)
    process = start(program)
    snapshot = look(process.pid)
    image = image_of(snapshot, program)
    program.unlink()
    shutil.copy(build("threads"), program)
    with pytest.raises(MemoryReadError):
        snapshot.memory.read(image.load_address, 4)


@root_only
def test_code_of_a_deleted_library_is_copied_for_an_ordinary_user(build, start, as_nobody):
    """An ordinary user may not open a deleted file of another process."""
    built = build("library", "-shared", "-fPIC")
    library = built.with_name("deleted.so")  # where another user may read it
    shutil.copy(built, library)
    process = start(build("host", "-ldl"), library, user=65534, group=65534)
    library.unlink()

    def check():
        snapshot = look(process.pid)
        image = image_of(snapshot, library)
        address, data = code(snapshot, image)
        names = [snapshot.images.find(f.address).name for f in unwind(snapshot)[0].addresses]
        return (
            image.local_path,
            same_in_process(process.pid, address, data),
            library.name in names,
            unwind(snapshot)[0].stop.reason.value,
        )

    assert as_nobody(check) == [None, True, True, "root"]


@root_only
def test_a_containers_file_is_opened_through_the_process(build, start, tmp_path):
    """Its path has another meaning here."""
    inside = tmp_path / "inside"
    inside.mkdir()
    script = 'mount -t tmpfs none "$1" && cp "$2" "$1/program" && exec "$1/program"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", inside, build("undumpable")]
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no mount namespaces here")
    process = start(*command)
    program = inside / "program"
    assert not program.exists()
    snapshot = look(process.pid)
    image = image_of(snapshot, program)
    address, data = code(snapshot, image)
    assert same_in_process(process.pid, address, data)
    assert image.local_path is not None
    assert Path(image.local_path).read_bytes() == build("undumpable").read_bytes()
    # Libraries that are the same file in both namespaces may have either path.
    assert unwind(snapshot)[0].stop.reason is StopReason.ROOT


def test_the_vdso_has_the_bytes_that_the_kernel_maps(start):
    """The bytes equal those of this process."""
    process = start(sys.executable, "-c", "print('ready', flush=True); input()")
    snapshot = look(process.pid)
    vdso = image_of(snapshot, "[vdso]")
    line = next(line for line in Path("/proc/self/maps").read_text().splitlines() if "vdso" in line)
    first, end = (int(word, 16) for word in line.split()[0].split("-"))
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:
        memory.seek(first)
        own = memory.read(end - first)
    assert snapshot.memory.read(vdso.load_address, len(own)) == own
    assert vdso.uuid is not None


def test_an_elf_file_mapped_as_data_is_not_an_image(start):
    source = f"""
import mmap
with open({sys.executable!r}, "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print("ready", flush=True)
input()
"""
    process = start(sys.executable, "-c", source)
    paths = [image.path for image in look(process.pid).images]
    assert len(paths) == len(set(paths))


READ_BEFORE_CODE = """
import ctypes, mmap, os, struct, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]

def is_mapped():
    rows = [line.split() for line in open("/proc/self/maps").read().splitlines()]
    ranges = [tuple(int(one, 16) for one in row[0].split("-")) for row in rows]
    code = next(
        begin
        for (begin, _), row in zip(ranges, rows)
        if "x" in row[1] and "libc.so" in row[-1]
    )
    # The last free page before libc's code, with a page on either side of it free, too.
    gaps = zip([end for _, end in ranges], [begin for begin, _ in ranges[1:]])
    free = [end - 8192 for begin, end in gaps if end <= code and end - begin >= 12288]
    at = free[-1]
    far = code - at
    # An executable whose code is that far from its header.
    header = bytes([127, 69, 76, 70, 2, 1, 1]).ljust(16, bytes(1))
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    header += struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, 4096, 4096, 4096)
    header += struct.pack("<IIQQQQQQ", 1, 5, far, far, far, 4096, 4096, 4096)
    with open(sys.argv[1], "wb") as file:
        file.write(header.ljust(4096, bytes(1)))
    file = os.open(sys.argv[1], os.O_RDONLY)
    # MAP_SHARED | MAP_FIXED_NOREPLACE: existing mappings are not replaced.
    return libc.mmap(at, 4096, mmap.PROT_READ, 0x100001, file, 0) == at

# The interpreter may itself have mapped that page meanwhile, for its own memory: try again.
print(any(is_mapped() for _ in range(10)), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def reader(tmp_path):
    """A process that maps a file as data where its code would be libc's, and the file."""
    path = tmp_path / "read"
    process = subprocess.Popen(
        [sys.executable, "-c", READ_BEFORE_CODE, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"True\n"
        yield process, path
    finally:
        process.kill()
        process.communicate()


def test_a_file_that_is_read_before_an_image_does_not_hide_it(reader):
    """The file's code would be at the address of the image's if it were loaded."""
    process, path = reader
    with LinuxProcessTarget(process.pid) as target:
        images = [image.path for image in target.snapshot().images]
    assert str(path) not in images
    assert any("libc.so" in one for one in images)
    assert any("python" in one for one in images)


def test_a_file_mapped_as_data_does_not_hide_an_image_in_a_core(reader, tmp_path):
    """A core of gdb also has the data mapping."""
    gdb = shutil.which("gdb")
    if gdb is None:
        pytest.skip("gdb is not installed")
    process, path = reader
    core = tmp_path / "core"
    command = [gdb, "-q", "-batch", "-nx", "-iex", "set debuginfod enabled off"]
    command += ["-p", str(process.pid)]
    subprocess.run([*command, "-ex", f"generate-core-file {core}"], capture_output=True, check=True)
    with open_target(core) as target:
        images = [image.path for image in target.snapshot().images]
    assert str(path) not in images
    assert any("libc.so" in one for one in images)


def test_an_open_target_lists_images_loaded_later(start):
    source = """
print("ready", flush=True)
input()
import sqlite3
print("ready", flush=True)
input()
"""
    process = start(sys.executable, "-c", source)
    with LinuxProcessTarget(process.pid) as target:
        before = {image.path for image in target.snapshot().images}
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        after = {image.path for image in target.snapshot().images}
    assert before < after
    assert any("sqlite" in path for path in after - before)
