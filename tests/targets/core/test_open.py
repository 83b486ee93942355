"""Files other than Mach-O cores: the error names the kind of file and a remedy."""

from __future__ import annotations

import os
import sys
from struct import pack

import pytest

from machtrace.errors import CoreFileError, FileAccessError, MachOError, MachtraceError, TargetError
from machtrace.targets.core.macho import open_corefile
from tests.support.writers.processes import synthetic_process
from tests.support.writers.synthetic_image import synthetic_image


def refusal(path):
    """Return the error, checked to be one line with a remedy."""
    with pytest.raises(MachtraceError) as caught:
        open_corefile(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.remedy
    return caught.value


def test_a_missing_file_is_an_error(tmp_path):
    error = refusal(tmp_path / "missing.core")
    assert isinstance(error, FileAccessError)
    assert error.reason == "no such file"


def test_a_directory_is_an_error(tmp_path):
    assert "a directory" in refusal(tmp_path).reason


def test_a_named_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe").reason == "not a regular file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_has_the_systems_message(tmp_path):
    path = tmp_path / "secret.core"
    path.write_bytes(b"x")
    path.chmod(0)
    assert "ermission" in refusal(path).reason


def test_a_path_with_nul_is_an_access_error():
    with pytest.raises(FileAccessError):
        open_corefile("a\0b")


def test_an_empty_file_is_reported_as_empty(tmp_path):
    """Mapping it would fail with another message."""
    path = tmp_path / "empty.core"
    path.touch()
    assert "the file is empty" in str(refusal(path))


@pytest.mark.parametrize(
    ("data", "words", "remedy"),
    [
        (b"#!/bin/sh\n", "it starts with 23 21 2f 62", "pass a core"),
        (b"\xca\xfe\xba\xbe" + bytes(40), "a fat Mach-O", "machtrace image"),
        (b"MDMP" + bytes(40), "a minidump", "lldb"),
        (b"\x1f\x8b\x08" + bytes(40), "gzip", "gunzip"),
        (b"\x28\xb5\x2f\xfd" + bytes(40), "zstd", "unzstd"),
        (
            b"\x7fELF\x02\x02\x01" + bytes(9) + pack(">2H", 4, 62) + bytes(44),
            "big-endian x86_64",
            "arm64",
        ),
        (b"\x7fELF\x02\x01\x01" + bytes(9) + pack("<H", 3) + bytes(40), "an ELF file", "core"),
        (b"\x7fEL", "it starts with 7f 45 4c", "core"),
        (
            b"\xcf\xfa\xed\xfe" + pack("<7I", 0x0100000C, 0, 6, 0, 0, 0, 0),
            "dylib",
            "machtrace image",
        ),
        (b"\xcf\xfa\xed\xfe" + pack("<7I", 0x01000012, 0, 4, 0, 0, 0, 0), "ppc64", "arm64"),
        (b"\xfe\xed\xfa\xce" + pack(">6I", 12, 0, 4, 0, 0, 0), "arm", "arm64"),
    ],
)
def test_common_other_files_have_their_own_messages(tmp_path, data, words, remedy):
    path = tmp_path / "file"
    path.write_bytes(data)
    error = refusal(path)
    assert isinstance(error, CoreFileError)
    assert words in str(error)
    assert remedy in error.remedy


@pytest.mark.parametrize("size", [4, 5, 20, 31])
def test_a_truncated_header_is_reported_with_the_files_size(tmp_path, size):
    path = tmp_path / "short.core"
    path.write_bytes(synthetic_process(threads=1, images=1).core()[:size])
    error = refusal(path)
    assert isinstance(error, MachOError)
    assert f"{size} are left" in str(error)


def test_another_mach_o_type_is_named_with_its_command(tmp_path):
    path = tmp_path / "x.dylib"
    path.write_bytes(synthetic_image("/usr/lib/x.dylib").data)
    error = refusal(path)
    assert "of type dylib, not a core" in str(error)
    assert "machtrace image" in error.remedy


def test_the_python_executable_is_not_a_core():
    assert "ELF file, not a core" in str(refusal(sys.executable))


def test_a_closed_target_refuses_calls(tmp_path):
    """It can be closed twice; leaving the context closes it."""
    path = tmp_path / "x.core"
    path.write_bytes(synthetic_process(threads=1, images=1).core())
    with open_corefile(str(path)) as target:
        assert len(target.threads()) == 1
    target.close()
    with pytest.raises(TargetError, match="closed"):
        target.threads()
    with pytest.raises(TargetError, match="closed"):
        target.snapshot()
