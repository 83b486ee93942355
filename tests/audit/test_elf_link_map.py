"""Maps of ELF's linkers, in the form that each writes."""

import pytest

from machtrace.audit.scan.link_map import parse_link_map
from machtrace.errors import FormatError

GNU = """
Discarded input sections

 .text          0x0000000000000000       0x40 unused.o

Linker script and memory map

LOAD main.o
 .init          0x0000000000001000       0x16 crti.o
 .text          0x0000000000001040       0x22 Scrt1.o
 .text          0x0000000000001062        0x0 crti.o
 .text.startup  0x0000000000001070       0x30 main.o
                0x0000000000001070                main
 *fill*         0x00000000000010a0        0x8
 .text.a_function_with_a_long_name
                0x00000000000010b0       0x10 a folder/libalpha.a(alpha.o)
 .data          0x0000000000004000       0x10 main.o
"""
GOLD = """
Archive member included because of file (symbol)

Memory map

.text           0x0000000000001040       0x80
 .text          0x0000000000001040       0x22 Scrt1.o
 .text          0x0000000000001070       0x30 main.o
 ** fill        0x00000000000010a0        0x8
 .text          0x00000000000010b0       0x10 a folder/libalpha.a(alpha.o)
"""
LLD = """\
             VMA              LMA     Size Align Out     In      Symbol
            1000             1000       16     4 .init
            1000             1000       16     4         crti.o:(.init)
            1040             1040       80    16 .text
            1040             1040       22     4         Scrt1.o:(.text)
            1040             1040       22     1                 _start
            1070             1070       30    16         main.o:(.text.startup)
            10b0             10b0       10    16         a folder/libalpha.a(alpha.o):(.text)
"""
MOLD = """\
               VMA       Size Align Out     In      Symbol
            0x1040         80    16 .text
            0x1040         22     4         Scrt1.o:(.text)
            0x1070         30    16         main.o:(.text.startup)
            0x10b0         10    16         a folder/libalpha.a(alpha.o):(.text)
"""


@pytest.mark.parametrize("text", [GNU, GOLD, LLD, MOLD], ids=["GNU ld", "gold", "lld", "mold"])
def test_each_part_of_the_code_has_its_object_file(text):
    link_map = parse_link_map(text.encode(), "app.map")
    objects = {at: link_map.object_at(at) for at in (0x1040, 0x1061, 0x1065, 0x1070, 0x10B8)}
    assert objects == {
        0x1040: "Scrt1.o",
        0x1061: "Scrt1.o",
        0x1065: None,
        0x1070: "main.o",
        0x10B8: "a folder/libalpha.a(alpha.o)",
    }
    assert link_map.object_at(0x1000) is None
    assert link_map.object_at(0x0) is None


@pytest.mark.parametrize("text", ["", "Memory map\n", "a\nb\n", GNU.partition("Linker")[0]])
def test_a_text_without_parts_is_no_map(text):
    with pytest.raises(FormatError):
        parse_link_map(text.encode(), "app.map")
