"""The table of published binaries, and how they are fetched."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.published import fetch as fetching
from tests.support.published.fetch import FetchError, fetch
from tests.support.published.files import (
    Archive,
    PublishedFile,
    Registry,
    published_files,
    subjects,
)

_CODE = b"code" * 1000
_PIECE = (4, 2000)


def _wheel(name: str) -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as wheel:
        wheel.writestr(name, _CODE)
    return output.getvalue()


def _tar(name: str, mode: str = "w:gz") -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode=mode) as archive:  # type: ignore[call-overload]
        member = tarfile.TarInfo(name)
        member.size = len(_CODE)
        archive.addfile(member, io.BytesIO(_CODE))
    return output.getvalue()


def _deb(name: str) -> bytes:
    output = b"!<arch>\n"
    members = (
        (b"debian-binary", b"2.0\n"),
        (b"control.tar.xz", b"odd"),
        (b"data.tar.xz", _tar(name, "w:xz")),
    )
    for label, data in members:
        header = label.ljust(16) + b"0".ljust(12) + b"0".ljust(6) + b"0".ljust(6) + b"644".ljust(8)
        output += (
            header + str(len(data)).encode().ljust(10) + b"`\n" + data + b"\n" * (len(data) % 2)
        )
    return output


_ARCHIVES = {
    Registry.PYPI: _wheel("./bin/program"),
    Registry.NPM: _tar("./bin/program"),
    Registry.DEBIAN: _deb("./bin/program"),
}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _file(
    registry: Registry,
    *,
    archive_sha256: str | None = None,
    sha256: str | None = None,
    piece: tuple[int, int] | None = None,
    member: str = "./bin/program",
) -> PublishedFile:
    expected = _CODE if piece is None else _CODE[piece[0] : piece[0] + piece[1]]
    data = _ARCHIVES[registry]
    return PublishedFile(
        archive=Archive(registry, "package", "1.0", "any", archive_sha256 or _sha256(data)),
        name="program",
        member=member,
        piece=piece,
        architectures=("arm64",),
        sha256=sha256 or _sha256(expected),
        language="C",
        why="a test",
    )


@pytest.fixture(autouse=True)
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[Registry]:
    """Registries without a network; returns those that were used."""
    used: list[Registry] = []

    def download(archive: Archive, directory: Path, _: Path) -> Path:
        used.append(archive.registry)
        path = directory / "archive"
        path.write_bytes(_ARCHIVES[archive.registry])
        return path

    monkeypatch.setattr(fetching, "_download", download)
    return used


def _fetched(files: Sequence[PublishedFile], folder: Path) -> list[FetchError]:
    return fetch(files, folder, lambda _: None)


@pytest.mark.parametrize("registry", Registry)
@pytest.mark.parametrize("piece", [None, _PIECE])
def test_a_file_is_extracted_and_nothing_else_remains(
    registry: Registry, piece: tuple[int, int] | None, tmp_path: Path
) -> None:
    file = _file(registry, piece=piece)
    assert _fetched([file], tmp_path) == []
    assert _sha256(file.path(tmp_path).read_bytes()) == file.sha256
    assert list(tmp_path.iterdir()) == [file.path(tmp_path)]


def test_a_file_that_is_there_is_not_fetched_again(
    tmp_path: Path, downloads: list[Registry]
) -> None:
    file = _file(Registry.NPM)
    _fetched([file], tmp_path)
    _fetched([file], tmp_path)
    assert downloads == [Registry.NPM]


def test_a_damaged_file_is_fetched_again(tmp_path: Path, downloads: list[Registry]) -> None:
    file = _file(Registry.NPM)
    file.path(tmp_path).write_bytes(_CODE[:-1])
    assert _fetched([file], tmp_path) == []
    assert file.is_fetched(tmp_path)
    assert downloads == [Registry.NPM]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (_file(Registry.PYPI, archive_sha256="0" * 64), "its sha256 is"),
        (_file(Registry.PYPI, sha256="0" * 64), "the sha256 of ./bin/program is"),
        (_file(Registry.PYPI, member="other"), "other cannot be extracted"),
        (_file(Registry.NPM, member="other"), "other cannot be extracted"),
    ],
)
def test_an_archive_that_is_another_is_reported(
    file: PublishedFile, message: str, tmp_path: Path
) -> None:
    (failure,) = _fetched([file], tmp_path)
    assert message in str(failure)
    assert str(failure).startswith("package 1.0 (")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("registry", Registry)
def test_a_missing_client_is_reported(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(fetching.shutil, "which", lambda _: None)
    (failure,) = _fetched([_file(registry)], tmp_path)
    assert str(failure).endswith("is not installed")


def test_the_table_names_each_slice_once() -> None:
    keys = [subject.key for subject in subjects(published_files())]
    assert len(keys) == len(set(keys))


def test_the_table_names_releases_by_hash() -> None:
    for file in published_files():
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert re.fullmatch("[0-9a-f]{64}", file.archive.sha256)
        assert file.archive.version
        assert file.why
