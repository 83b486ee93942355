"""Published binaries, fetched by the clients of their registries: pip, npm and apt-get.

An archive is downloaded into a temporary folder, its hash is checked, the named files are extracted
and theirs checked; the archive is deleted. A file that is already extracted is not fetched again.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from machtrace.atomic_write import replace_file
from tests.support.published.files import Archive, PublishedFile, Registry

_TIMEOUT = 900.0
_PYTHON = "3.12"
"""The version that the wheels of the table are for."""
_AR_MAGIC = b"!<arch>\n"
_AR_HEADER = 60


class FetchError(Exception):
    """An archive cannot be had; the message names it and the reason."""

    def __init__(self, archive: Archive, reason: str) -> None:
        """Keep the archive and the reason."""
        super().__init__(f"{archive}: {reason}")
        self.archive = archive


def fetch(
    files: Iterable[PublishedFile], folder: Path, progress: Callable[[str], None]
) -> list[FetchError]:
    """Fetch the files that are missing.

    Args:
        files: in the table's order: files of one archive are consecutive.
        folder: for the files, created if necessary.
        progress: called before each archive, with its name, and after the last one.

    Returns:
        The archives that could not be had.
    """
    folder.mkdir(parents=True, exist_ok=True)
    failures = []
    for archive, members in groupby(files, key=lambda file: file.archive):
        progress(str(archive))
        missing = [file for file in members if not file.is_fetched(folder)]
        if not missing:
            continue
        try:
            _fetch_archive(archive, missing, folder)
        except FetchError as failure:
            failures.append(failure)
    progress("")
    return failures


def _fetch_archive(archive: Archive, files: Sequence[PublishedFile], folder: Path) -> None:
    with TemporaryDirectory(prefix="fetch-", dir=folder) as directory:
        path = _download(archive, Path(directory), folder)
        contents = path.read_bytes()
        if (actual := hashlib.sha256(contents).hexdigest()) != archive.sha256:
            raise FetchError(archive, f"its sha256 is {actual}, not {archive.sha256}")
        for file in files:
            extracted = _extracted(archive, contents, file)
            if (actual := hashlib.sha256(extracted).hexdigest()) != file.sha256:
                reason = f"the sha256 of {file.member} is {actual}, not {file.sha256}"
                raise FetchError(archive, reason)
            replace_file(str(file.path(folder)), (extracted,), is_durable=False)


def _download(archive: Archive, directory: Path, folder: Path) -> Path:
    match archive.registry:
        case Registry.PYPI:
            _run(archive, _pip_command(archive, directory), directory)
        case Registry.NPM:
            name = f"{archive.package}@{archive.version}"
            _run(archive, ("npm", "pack", "--silent", name), directory)
        case Registry.DEBIAN:
            options = _apt_options(archive, folder)
            name = f"{archive.package}={archive.version}"
            _run(archive, ("apt-get", *options, "download", name), directory)
    paths = list(directory.iterdir())
    if len(paths) != 1:
        raise FetchError(archive, f"{len(paths)} files were downloaded instead of one")
    return paths[0]


def _pip_command(archive: Archive, directory: Path) -> tuple[str, ...]:
    return (
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary", ":all:", "--platform", archive.platform),
        *("--python-version", _PYTHON, "--implementation", "cp"),
        *("--abi", f"cp{_PYTHON.replace('.', '')}", "--abi", "abi3", "--abi", "none"),
        *("--dest", str(directory), f"{archive.package}=={archive.version}"),
    )


def _apt_options(archive: Archive, folder: Path) -> tuple[str, ...]:
    """Return the options of apt-get for lists of its own, which one update fills.

    The configured sources serve every architecture; the system's own lists are not changed.
    """
    lists = folder / f"apt-{archive.platform}"
    options = (
        *("-qq", "-o", f"Dir::State={lists}", "-o", f"Dir::State::status={lists / 'status'}"),
        *("-o", f"Dir::Cache={lists}", "-o", "APT::Sandbox::User="),
        *("-o", f"APT::Architecture={archive.platform}"),
        *("-o", f"APT::Architectures::={archive.platform}"),
    )
    complete = lists / "complete"
    if not complete.exists():
        for part in ("lists/partial", "archives/partial"):
            (lists / part).mkdir(parents=True, exist_ok=True)
        (lists / "status").touch()
        _run(archive, ("apt-get", *options, "update"), lists)
        complete.touch()
    return options


def _run(archive: Archive, command: Sequence[str], directory: Path) -> None:
    if shutil.which(command[0]) is None:
        raise FetchError(archive, f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
            env=os.environ | {"LC_ALL": "C.UTF-8"},
        )
    except subprocess.TimeoutExpired:
        raise FetchError(archive, f"{command[0]} did not finish in {_TIMEOUT:.0f} s") from None
    if done.returncode:
        last = next(reversed((done.stderr or done.stdout).strip().splitlines()), "no message")
        raise FetchError(archive, f"{Path(command[0]).name} failed: {last}")


def _extracted(archive: Archive, contents: bytes, file: PublishedFile) -> bytes:
    try:
        whole = _member(archive.registry, contents, file.member)
    except (KeyError, tarfile.TarError, zipfile.BadZipFile) as problem:
        raise FetchError(archive, f"{file.member} cannot be extracted: {problem}") from problem
    if file.piece is None:
        return whole
    offset, size = file.piece
    return whole[offset : offset + size]


def _member(registry: Registry, contents: bytes, name: str) -> bytes:
    if registry is Registry.PYPI:
        with zipfile.ZipFile(io.BytesIO(contents)) as wheel:
            return wheel.read(name)
    if registry is Registry.DEBIAN:
        contents = _data_of_deb(contents)
    with tarfile.open(fileobj=io.BytesIO(contents)) as archive:
        member = archive.extractfile(name)
        if member is None:
            raise KeyError(f"{name} is not a regular file")
        return member.read()


def _data_of_deb(contents: bytes) -> bytes:
    """Return the tar archive with the files of a Debian package, which is an ar archive."""
    if not contents.startswith(_AR_MAGIC):
        raise tarfile.ReadError("not a Debian package")
    offset = len(_AR_MAGIC)
    while offset + _AR_HEADER <= len(contents):
        header = contents[offset : offset + _AR_HEADER]
        size = int(header[48:58])
        offset += _AR_HEADER
        if header.startswith(b"data.tar"):
            return contents[offset : offset + size]
        offset += size + size % 2  # members begin at even offsets
    raise tarfile.ReadError("the Debian package has no files")
