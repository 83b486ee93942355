"""C sources of real programs, from the source distributions of Python packages.

They are downloaded by pip, checked by hash, and kept in a directory that the caller names.
Nothing of them is part of this project.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SourcePackage:
    """One release of a package."""

    name: str
    version: str
    sha256: str
    """Of its source distribution."""
    directory: str
    """That its archive unpacks to."""

    @property
    def requirement(self) -> str:
        """As a line of a requirements file."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"

    def unpacked(self, cache: Path) -> Path:
        """Where its sources are, once they were fetched."""
        return cache / self.directory


PACKAGES = {
    package.name: package
    for package in (
        SourcePackage(
            "zstandard",
            "0.25.0",
            "7713e1179d162cf5c7906da876ec2ccb9c3a9dcbdffef0cc7f70c3667a205f0b",
            "zstandard-0.25.0",
        ),
        SourcePackage(
            "lupa",
            "2.8",
            "d8022641b9ec8ecf2c5ecbe9f47e5a70e0b87c4b5ae921b92cb02a638e0acd08",
            "lupa-2.8",
        ),
        SourcePackage(
            "quickjs",
            "1.19.4",
            "1205953abc24ff757f4a795304d5d61e4bf1e555c9ef6ec96a132d4b95535484",
            "quickjs-1.19.4",
        ),
        SourcePackage(
            "sqlean.py",
            "3.50.4.5",
            "9764b565e7ab430ab6e9e43cb2816199c2b39926dffc93c212a52f0019278459",
            "sqlean_py-3.50.4.5",
        ),
    )
}
"""By name."""


def fetch(package: SourcePackage, cache: Path) -> Path:
    """Download and unpack a package, unless it is there.

    Args:
        package: which.
        cache: a directory to keep it in, made where it is missing.

    Returns:
        Its sources' directory.

    Raises:
        subprocess.CalledProcessError: pip could not download it, or its hash is another.
        OSError, tarfile.TarError: it could not be unpacked.
    """
    unpacked = package.unpacked(cache)
    if unpacked.is_dir():
        return unpacked
    archives = cache / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    requirements = archives / f"{package.name}.txt"
    requirements.write_text(f"{package.requirement}\n")
    options = ("--no-deps", "--no-binary", ":all:", "--require-hashes", "--quiet")
    subprocess.run(  # noqa: S603 (our own interpreter and arguments)
        (
            *(sys.executable, "-m", "pip", "download", *options),
            *("-d", str(archives), "-r", str(requirements)),
        ),
        check=True,
        capture_output=True,
        text=True,
    )
    archive = archives / f"{package.directory}.tar.gz"
    partial = cache / f"{package.directory}.partial"
    with tarfile.open(archive) as opened:
        opened.extractall(partial, filter="data")
    (partial / package.directory).rename(unpacked)
    partial.rmdir()
    return unpacked
