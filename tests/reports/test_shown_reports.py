"""Names in views are demangled; storing formats preserve them."""

import json

import pytest

import machtrace as mt
from machtrace.reports.writers import FORMATS

MANGLED = "$s4Demo3runyyF"


@pytest.fixture
def report(tmp_path):
    """One of KSCrash, whose names of Swift are mangled."""
    frame = {"instruction_addr": 0x1000_4000, "object_addr": 0x1000_0000, "object_name": "Demo"}
    frame |= {"symbol_name": MANGLED, "symbol_addr": 0x1000_3FF0}
    thread = {"index": 0, "crashed": True, "backtrace": {"contents": [frame], "skipped": 0}}
    image = {"image_addr": 0x1000_0000, "image_size": 0x8000, "name": "/x/Demo"}
    path = tmp_path / "report.json"
    document = {
        "report": {"id": "A", "version": "3.2.0"},
        "binary_images": [image],
        "system": {"process_name": "Demo", "cpu_arch": "arm64"},
        "crash": {"error": {"type": "signal", "signal": {"signal": 11}}, "threads": [thread]},
    }
    path.write_text(json.dumps(document))
    return mt.read_report(path)


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"pprof"}))
def test_views_demangle(report, tmp_path, name):
    """The file of pprof is packed, and made of the same stacks as the others."""
    path = tmp_path / "out"
    mt.write_report(report, name, path)
    text = path.read_text()
    if name in {"json", "ips", "apple", "kscrash"}:
        assert MANGLED in text
    elif FORMATS[name].is_view:
        assert MANGLED not in text
        assert "Demo.run()" in text
