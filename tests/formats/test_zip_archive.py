"""Zip archives are decompressed in chunks: the limits bound the memory, not the archive."""

import bz2
import io
import lzma
import struct
import tracemalloc
import zipfile
import zlib
from functools import cache

import pytest

from machtrace.errors import FileAccessError
from machtrace.formats.zip_archive import ZipError, ZipProblem, is_zip, read_members
from machtrace.reports.inputs import report_inputs
from machtrace.symbolstore.archive import Unpacker, UnpackLimits
from machtrace.symbolstore.contained_images import Skipped, SkipReason

BLOWN_UP = 100 << 20
MACHO = b"\xcf\xfa\xed\xfe" + bytes(28)
METHODS = {zipfile.ZIP_DEFLATED: 8, zipfile.ZIP_BZIP2: 12, zipfile.ZIP_LZMA: 14}


def archive_of(packed, method, size, *, crc=0, name=b"crash-ips"):
    """Build an archive whose only member has this declared size."""
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 46, 0, method, 0, 0, crc, len(packed), size, 9, 0)
    entry = struct.pack(
        "<4s6H3L5H2L",
        *(b"PK\1\2", 46, 46, 0, method, 0, 0, crc, len(packed), size, len(name), 0, 0, 0, 0, 0, 0),
    )
    start = local + name + packed
    directory = entry + name
    return (
        start
        + directory
        + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(directory), len(start), 0)
    )


@cache
def bomb(method):
    """Build an archive of a few hundred bytes or KB whose member declares 1,000 and has 100 MB."""
    compressor = {
        8: lambda: zlib.compressobj(9, zlib.DEFLATED, -15),
        12: lambda: bz2.BZ2Compressor(9),
        14: lambda: lzma.LZMACompressor(lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA1}]),
    }[method]()
    parts = [compressor.compress(MACHO)]
    zeros = bytes(1 << 20)
    parts += [compressor.compress(zeros) for _ in range(BLOWN_UP >> 20)]
    packed = b"".join(parts) + compressor.flush()
    if method == zipfile.ZIP_LZMA:
        packed = struct.pack("<BBHBL", 9, 4, 5, 0x5D, 1 << 23) + packed
    return archive_of(packed, method, 1000)


def of_a_report(path):
    """Read it as a report."""
    (found,) = report_inputs(path)
    assert isinstance(found.source, FileAccessError)
    return found.source.reason


def of_a_store(path):
    """Unpack it for a symbol store."""
    (skipped,) = Unpacker(UnpackLimits(), path.parent).members(path, "a.zip")
    assert isinstance(skipped, Skipped)
    assert skipped.reason is SkipReason.MALFORMED
    return skipped.detail


@pytest.mark.parametrize("method", METHODS.values())
@pytest.mark.parametrize("read", [of_a_report, of_a_store])
def test_a_bomb_that_declares_little_takes_little_memory(tmp_path, method, read):
    path = tmp_path / "crash"
    path.write_bytes(bomb(method))
    tracemalloc.start()
    reason = read(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert ("method 14" if method == METHODS[zipfile.ZIP_LZMA] else "more than the 1,000") in reason
    assert most < 24 << 20
    assert [one.name for one in tmp_path.iterdir()] == ["crash"]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
@pytest.mark.parametrize("size", [0, 1, 5000, (1 << 20) - 1, 1 << 20, (5 << 20) + 3])
def test_members_have_the_bytes_that_zipfile_wrote(method, size):
    data = bytes(range(251)) * (size // 251 + 1)
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", method) as archive:
        archive.writestr("folder/", b"")
        archive.writestr("folder/é", data[:size])
    assert is_zip(sink.getvalue())

    folder, member = read_members(memoryview(b"junk in front" + sink.getvalue()))

    assert (folder.is_file, member.is_file) == (False, True)
    assert (member.name, member.size, member.problem) == ("folder/é", size, None)
    assert member.start(8) == data[: min(size, 8)]
    assert b"".join(member.chunks()) == data[:size]
    assert all(len(chunk) <= 1 << 20 for chunk in member.chunks())


def problem_of(data, **limits):
    """Return why an archive or its only member is not unpacked."""
    with pytest.raises(ZipError) as caught:
        [list(member.chunks()) for member in read_members(memoryview(data), **limits)]
    return caught.value.problem


def test_each_refusal_has_its_reason():
    packed = zlib.compress(b"text", wbits=-15)
    crc = zlib.crc32(b"text")
    good = archive_of(packed, 8, 4, crc=crc)
    assert [b"".join(member.chunks()) for member in read_members(memoryview(good))] == [b"text"]

    assert problem_of(archive_of(packed, 8, 4, crc=crc + 1)) is ZipProblem.MALFORMED
    assert problem_of(archive_of(packed, 8, 5, crc=crc)) is ZipProblem.MALFORMED
    assert problem_of(archive_of(packed, 8, 3, crc=crc)) is ZipProblem.MALFORMED
    assert problem_of(archive_of(packed[:2], 8, 4, crc=crc)) is ZipProblem.MALFORMED
    assert problem_of(archive_of(packed, 9, 4, crc=crc)) is ZipProblem.METHOD
    assert problem_of(good.replace(b"PK\3\4", b"PK\3\5")) is ZipProblem.MALFORMED
    assert problem_of(good[:-1]) is ZipProblem.MALFORMED
    assert problem_of(good, member_limit=0) is ZipProblem.TOO_MANY
    assert problem_of(good, directory_limit=50) is ZipProblem.TOO_LARGE
