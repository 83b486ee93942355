"""A file is used for an image if the identifiers match, or else only if its contents prove it."""

from dataclasses import replace

import pytest

from machtrace.errors import FileAccessError, MachOError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.images.resolver import ImageResolver
from machtrace.model.arch import Arch
from machtrace.model.memory import RegionMemory
from machtrace.model.symbol import FrameStatus
from machtrace.symbolizer.symbolicator import Symbolicator
from machtrace.symbols.image_symbols import ImageSymbols
from tests.support.writers.processes import synthetic_process


def files_of(process, folder):
    """Return the images of a process as files, by name."""
    paths = {}
    for made in process.images:
        paths[made.path] = folder / made.path.rpartition("/")[2]
        paths[made.path].write_bytes(made.data)
    return paths


def test_a_file_of_another_uuid_is_never_used(tmp_path):
    process = synthetic_process(Arch.ARM64, images=2)
    first, second = process.snapshot.images
    paths = files_of(process, tmp_path)

    found = ImageResolver.of(paths[first.path]).binary(first)
    assert isinstance(found, MachOFileContents)
    assert FrameStatus.MISMATCHED_FILE is ImageResolver.of(paths[first.path]).binary(second)


def test_without_a_uuid_a_file_must_have_the_images_name(tmp_path):
    """A file given for another image is not used."""
    process = synthetic_process(Arch.ARM64, images=2)
    first, second = (replace(image, uuid=None) for image in process.snapshot.images)
    paths = files_of(process, tmp_path)

    assert isinstance(ImageResolver.of(paths[first.path]).binary(first), MachOFileContents)
    assert FrameStatus.MISMATCHED_FILE is ImageResolver.of(paths[first.path]).binary(second)
    assert isinstance(ImageResolver.of(tmp_path).binary(second), MachOFileContents)


def test_images_without_identity_are_kept_apart():
    """Only the addresses of the two images are known."""
    process = synthetic_process(Arch.ARM64, images=2)
    memory = RegionMemory(process.regions)
    images = [replace(image, uuid=None, path="") for image in process.snapshot.images]
    symbolicator = Symbolicator()
    names = [
        symbolicator._opened(image, memory).table.symbol(0).linkage_name  # noqa: SLF001
        for image in images
    ]

    assert len(set(names)) == 2


def test_a_missing_search_path_is_reported(tmp_path):
    """It is not an error: all others are searched."""
    process = synthetic_process(Arch.ARM64, images=1)
    (image,) = process.snapshot.images
    files_of(process, tmp_path)
    missing = tmp_path / "nowhere"
    symbolicator = Symbolicator(search=[missing, tmp_path], lines=False)

    assert symbolicator.problems == ()
    assert isinstance(symbolicator._opened(image, RegionMemory()), ImageSymbols)  # noqa: SLF001
    (problem,) = symbolicator.problems
    assert isinstance(problem, FileAccessError)
    assert str(missing) in str(problem)


def test_malformed_tables_of_an_image_are_reported(tmp_path):
    """After the first lookup."""
    process = synthetic_process(Arch.ARM64, images=1)
    (image,) = process.snapshot.images
    (path,) = files_of(process, tmp_path).values()
    symtab = MachOFileContents(path.read_bytes(), "made").image.symtab
    assert symtab is not None
    data = bytearray(path.read_bytes())
    at = data.index(symtab.symoff.to_bytes(4, "little") + symtab.nsyms.to_bytes(4, "little"))
    data[at : at + 4] = (1 << 30).to_bytes(4, "little")
    path.write_bytes(data)
    symbolicator = Symbolicator(search=[path], lines=False)
    symbols = symbolicator._opened(image, RegionMemory())  # noqa: SLF001

    assert isinstance(symbols, ImageSymbols)
    assert symbolicator.problems == ()
    with pytest.raises(MachOError):
        _ = symbols.table
    assert [MachOError] == [type(problem) for problem in symbolicator.problems]
