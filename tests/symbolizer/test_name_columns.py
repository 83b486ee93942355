"""Names as columns are those that are objects."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from machtrace.images.named_file import path_image
from machtrace.model.report import ReportedImage
from machtrace.symbolizer.report_names import ReportNames
from tests.support.compilers.debug_programs import INLINED_C
from tests.support.compilers.executables import compile_elf


@pytest.mark.peer
@pytest.mark.parametrize("debug", ["-g", "-g0"])
def test_columns_have_the_calls_of_each_offset(tmp_path, debug):
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles the program that is read here")
    (tmp_path / "inlined.c").write_text(INLINED_C)
    options = (debug, "-O1", "-shared", "-Wl,--build-id=sha1")
    target = "x86_64-linux-musl"
    sources = [tmp_path / "inlined.c"]
    path = compile_elf(sources, tmp_path / "inlined.so", target=target, options=options)
    identifier = path_image(path, None)[0].uuid
    image = ReportedImage(name="inlined.so", path="", uuid=identifier, arch="x86_64")
    offsets = np.arange(1 << 15, dtype=np.uint64)[::-1]
    calls = ReportNames([path]).find(image, offsets.tolist())
    columns = ReportNames([path]).columns(image, offsets)
    assert columns is not None
    assert len(columns.function) > 50
    assert len(columns.first) == len(offsets) + 1
    assert max(map(len, calls.values())) == (3 if debug == "-g" else 1)
    for number, offset in enumerate(offsets.tolist()):
        rows = slice(columns.first[number], columns.first[number + 1])
        row = zip(
            *(getattr(columns, name)[rows].tolist() for name in ("function", "file", "line")),
            columns.source[rows].tolist(),
            strict=True,
        )
        assert [
            (columns.functions[function], columns.files[file], line, columns.sources[source])
            for function, file, line, source in row
        ] == [
            (
                call.name,
                "" if call.location is None else call.location.path,
                0 if call.location is None else call.location.line or 0,
                call.source.value,
            )
            for call in calls[offset]
        ]


def test_an_image_without_a_file_has_no_columns():
    image = ReportedImage(name="nowhere", path="", uuid=None, arch=None)
    assert ReportNames().columns(image, np.zeros(1, np.uint64)) is None
