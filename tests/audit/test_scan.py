"""Static call sites, compared with the truth in the source: no site too many, none too few."""

import re
import struct
from collections import Counter
from pathlib import Path

import pytest

from machtrace.audit.rules import load_rules
from machtrace.audit.scan.code import veneers
from machtrace.audit.scan.image import Certainty, scan_image
from machtrace.audit.scan.objects import linked_members
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.symbols.macho.table import macho_symbol_table
from machtrace.symbols.table import SymbolTable

SOURCE = Path(__file__).parent / "programs" / "calls.m"
_FUNCTION = re.compile(r"// ([^\n]+)\n(?:TRUTH [^\n(]*?(\w+)\(|([-+]) \([^)]*\)(\w+))")
LINKS = {"chained": "-fixup_chains", "opcodes": "-no_fixup_chains"}
STUBS = """
__asm__(".globl _stubs\\n_stubs:\\n"
    "stp x29, x30, [sp, #-16]!\\n"
    "mov x29, sp\\n"
    "adrp x8, _OBJC_CLASS_$_UIDevice@GOTPAGE\\n"
    "ldr x0, [x8, _OBJC_CLASS_$_UIDevice@GOTPAGEOFF]\\n"
    "bl \\"_objc_msgSend$currentDevice\\"\\n"
    "bl \\"_objc_msgSend$identifierForVendor\\"\\n"
    "ldp x29, x30, [sp], #16\\n"
    "ret\\n");
"""
"""Code of newer compilers: the linker creates the stubs that set the selector."""
LLD = ("-platform_version", "ios", "15.0", "16.5", "-dylib", "-undefined", "dynamic_lookup")


def truth() -> dict[str, Counter[str]]:
    """Return the number of sites of each rule in each function, by its name."""
    expected = {}
    owner = ""
    text = SOURCE.read_text()
    for match in _FUNCTION.finditer(text):
        names, function, sign, method = match.groups()
        if method:
            owner = re.findall(r"@implementation (\w+)", text[: match.start()])[-1]
            function = f"{sign}[{owner} {method}]"
        sites = Counter()
        for one in names.split(", ") if names != "none" else ():
            watch, _, count = one.rpartition(" ")
            sites[watch] = int(count)
        expected[function] = sites
    return expected


def found(contents: MachOFileContents, names: SymbolTable) -> dict[str, Counter[str]]:
    """Return the sites that are not merely possible, by their function's name in ``names``."""
    scan = scan_image(contents, load_rules())
    assert not scan.problems
    sites: dict[str, Counter[str]] = {}
    for site in scan.sites:
        if site.certainty is not Certainty.POSSIBLE:
            function = names.find(site.function_offset).name
            sites.setdefault(function, Counter())[site.rule.watch] += 1
    return sites


def watched(expected: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    return {name: sites for name, sites in expected.items() if sites}


def test_the_source_states_its_truth():
    assert len(truth()) == SOURCE.read_text().count("TRUTH ") - 1 + 4


@pytest.mark.peer
@pytest.mark.parametrize("level", ["-O0", "-O1", "-O2", "-Os"])
@pytest.mark.parametrize("arch", ["arm64", "x86_64"])
@pytest.mark.parametrize("link", LINKS)
def test_sites_equal_those_of_the_source(zig, llvm, tmp_path, arch, level, link):
    options = (level, "-fobjc-arc") if level == "-Os" else (level,)
    target = f"{arch}-apple-ios15.0"
    code = SOURCE.read_text() + (STUBS if arch == "arm64" else "")
    unit = zig(f"{arch}{level}.o", code, target, "-c", "-w", "-x", "objective-c", *options)
    library = tmp_path / "calls.dylib"
    llvm("ld64.lld", "-arch", arch, *LLD, LINKS[link], "-o", library, unit)
    contents = MachOFileContents(memoryview(library.read_bytes()), "calls.dylib")
    names = macho_symbol_table(contents)
    stubs = {"stubs": Counter({"-[UIDevice identifierForVendor]": 1})} if arch == "arm64" else {}
    expected = watched(truth()) | stubs
    assert found(contents, names) == expected
    llvm("llvm-strip", "-x", "-o", tmp_path / "stripped.dylib", library)
    stripped = (tmp_path / "stripped.dylib").read_bytes()
    assert found(MachOFileContents(memoryview(stripped), "stripped.dylib"), names) == expected


@pytest.mark.peer
@pytest.mark.parametrize("level", ["-O0", "-O2", "-Os"])
@pytest.mark.parametrize("arch", ["arm64", "x86_64"])
def test_sites_of_a_static_library_equal_those_of_the_source(zig, llvm, tmp_path, arch, level):
    options = (level, "-fobjc-arc") if level == "-Os" else (level,)
    code = SOURCE.read_text() + (STUBS if arch == "arm64" else "")
    target = f"{arch}-apple-ios15.0"
    unit = zig(f"{arch}{level}.o", code, target, "-c", "-w", "-x", "objective-c", *options)
    archive = tmp_path / "libcalls.a"
    llvm("llvm-ar", "rcs", archive, unit)
    problems = []
    (contents,) = linked_members(memoryview(archive.read_bytes()), "libcalls.a", problems)
    assert not problems
    stubs = {"stubs": Counter({"-[UIDevice identifierForVendor]": 1})} if arch == "arm64" else {}
    assert found(contents, macho_symbol_table(contents)) == watched(truth()) | stubs


SWIFT = """
extern void *transactions(void) __asm__("_{symbol}");
__asm__(".globl _own\\n_own:\\n ret\\n");
int look_alike(void) __asm__("_$s4Demo3FooC12systemUptimeSiyF");
int look_alike(void) {{ return 3; }}
void *caller(void) __asm__("_$s4Demo6calleryyF");
void *caller(void) {{ return transactions(); }}
"""


@pytest.mark.peer
@pytest.mark.parametrize(
    ("watch", "symbol"),
    [(rule.watch, symbol[1:]) for rule in load_rules().rules for symbol in rule.symbols],
)
def test_a_swift_declaration_is_found_by_its_mangled_name(zig, llvm, tmp_path, watch, symbol):
    code = SWIFT.format(symbol=symbol)
    unit = zig("swift.o", code, "arm64-apple-ios15.0", "-c", "-w", "-O1")
    library = tmp_path / "swift.dylib"
    llvm("ld64.lld", "-arch", "arm64", *LLD, "-o", library, unit)
    scan = scan_image(
        MachOFileContents(memoryview(library.read_bytes()), "swift.dylib"), load_rules()
    )
    assert [(site.rule.watch, site.function) for site in scan.sites] == [
        (watch, "Demo.caller() -> ()")
    ]


@pytest.mark.peer
def test_encrypted_code_is_reported_and_its_imports_are_read(zig, llvm, tmp_path):
    """As the App Store's: LC_ENCRYPTION_INFO_64, which linkers write with an id of 0."""
    code = "extern int stat(void);\nint size(void) { return stat(); }\n"
    unit = zig("plain.o", code, "arm64-apple-ios15.0", "-c", "-w")
    library = tmp_path / "encrypted.dylib"
    llvm("ld64.lld", "-arch", "arm64", *LLD, "-o", library, unit)
    data = bytearray(library.read_bytes())
    command = data.index(struct.pack("<II", 0x2C, 24))
    struct.pack_into("<I", data, command + 16, 1)
    scan = scan_image(MachOFileContents(memoryview(bytes(data)), "encrypted"), load_rules())
    assert scan.names == {"stat": ("imported",)}
    assert not scan.sites
    assert "the code is encrypted" in str(scan.problems[0])


def test_veneers_lead_to_their_targets():
    """Forward, backward, and what only resembles one."""
    words = [
        *(0x90000010, 0x91010210, 0xD61F0200),  # adrp x16, 0; add x16, x16, #0x40; br x16
        *(0xF0FFFFF0, 0x913FFE10, 0xD61F0200),  # adrp x16, -0x1000; add x16, x16, #0xfff; br x16
        *(0x90000010, 0xF9400210, 0xD61F0200),  # ldr: a stub
        *(0x90000011, 0x91010231, 0xD61F0220),  # x17
    ]
    code = memoryview(b"".join(word.to_bytes(4, "little") for word in words))
    assert veneers(code, 0x100004000) == {0x100004000: 0x100004040, 0x10000400C: 0x100003FFF}
    assert veneers(code[:8], 0x100004000) == {}
