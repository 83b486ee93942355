"""Naming an address searches its image's files once, and opens each file once."""

import sys
from dataclasses import replace
from shutil import copyfile

import pytest

from machtrace.cli.atos.arguments import AddressMode, AtosRequest
from machtrace.cli.atos.file import FileAnswers
from machtrace.images import resolver
from machtrace.images.named_file import path_image
from machtrace.images.resolver import ImageResolver
from machtrace.model.report import ReportedImage
from machtrace.model.symbol import FrameStatus
from machtrace.symbolizer.image_names import ImageNames
from machtrace.symbolizer.report_names import ReportNames
from machtrace.symbolizer.symbolicator import Symbolicator
from tests.support.compilers.executables import compile_elf

pytestmark = pytest.mark.peer

SOURCE = "int volatile sink;\nint named(int n) {\n  sink = n;\n  return n;\n}\n"

opened: list[str] = []


def _note(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        opened.append(arguments[0])


sys.addaudithook(_note)  # for the rest of the process: a hook cannot be removed


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A shared object with DWARF."""
    folder = tmp_path_factory.mktemp("searched")
    (folder / "named.c").write_text(SOURCE)
    options = ("-g", "-O1", "-shared", "-Wl,--build-id=sha1")
    target = "x86_64-linux-musl"
    return compile_elf([folder / "named.c"], folder / "named.so", target=target, options=options)


@pytest.fixture
def image(built):
    """The image of the shared object."""
    return path_image(built, None)[0]


@pytest.fixture
def searches(monkeypatch, tmp_path):
    """Count searches for debug files, with an empty index cache."""
    monkeypatch.setenv("MACHTRACE_CACHE", str(tmp_path))
    count = []

    class Counted(resolver.DebugSearch):
        def __init__(self, *arguments):
            count.append(arguments)
            super().__init__(*arguments)

    monkeypatch.setattr(resolver, "DebugSearch", Counted)
    return count


def by_image_names(path, image, offset):
    """Name the address by an image's names."""
    ImageNames(image, None, [path]).find([offset])


def by_report_names(path, image, offset):
    """Name it as a report's."""
    reported = ReportedImage(name="named.so", path="", uuid=image.uuid, arch="x86_64")
    assert ReportNames([path]).find(reported, [offset])[offset]


def by_name_alone(path, _image, offset):
    """Name it as that of a report without identifiers."""
    reported = ReportedImage(name="named.so", path="", uuid=None, arch="x86_64")
    assert ReportNames([path]).find(reported, [offset])[offset]


def by_atos(path, _image, offset):
    """Name it as atos does."""
    request = AtosRequest(mode=AddressMode.OFFSET)
    assert "named" in FileAnswers(path, request, pytest.fail).answer([offset])[0]


def by_lookup(path, image, offset):
    """Name it in columns, of an image."""
    columns = Symbolicator([path]).lookup(image, [offset])
    assert columns.names() == ["named"]
    assert columns.lines[0]


def by_path(path, _image, offset):
    """Name it in columns, of a file."""
    columns = Symbolicator().lookup(path, [offset])
    assert columns.names() == ["named"]
    assert columns.lines[0]


@pytest.mark.parametrize(
    "name", [by_image_names, by_report_names, by_name_alone, by_atos, by_lookup, by_path]
)
def test_each_lookup_searches_once_and_opens_the_file_once(built, image, searches, name):
    """The file is opened once more if an index of its DWARF is built."""
    offset = Symbolicator(lines=False).lookup(built, range(image.size)).names().index("named")
    searches.clear()
    for expected in (2, 1):
        opened.clear()
        name(str(built), image, offset)
        assert opened.count(str(built)) == expected
        assert len(searches) == 1
        searches.clear()


def test_unwinding_and_naming_share_one_search(built, image, searches):
    """The resolver is passed on."""
    files = ImageResolver.of([built])
    assert ImageResolver.of(files) is files
    opened.clear()
    contents = files.binary(image)
    assert len(searches) == 0
    assert Symbolicator(files, lines=False).lookup(image, [0]).names() == [None]
    assert files.files(image).binary is contents
    assert (len(searches), opened.count(str(built))) == (1, 1)


def test_a_missing_image_is_searched_again_for_another_process(image):
    """It has the same identifier there, and a readable path."""
    files = ImageResolver()
    absent = replace(image, path="/absent", local_path=None)
    assert files.binary(absent) is FrameStatus.MISSING_FILE
    assert not isinstance(files.binary(image), FrameStatus)
    assert files.binary(absent) is FrameStatus.MISSING_FILE


def test_a_replaced_file_without_an_identifier_is_opened_again(built, image, tmp_path):
    """Its path does not determine its contents."""
    path = tmp_path / "named.so"
    copyfile(built, path)
    file = replace(image, path=str(path), local_path=str(path))
    bare = replace(file, uuid=None)
    files = ImageResolver()
    assert files.binary(file) is files.binary(file)
    assert files.binary(bare) is FrameStatus.MISMATCHED_FILE
    path.unlink()
    assert files.binary(bare) is FrameStatus.MISSING_FILE
