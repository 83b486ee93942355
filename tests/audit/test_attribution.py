"""The library of a call inside one binary, with the evidence for it."""

import shutil

import pytest

from machtrace.audit.rules import load_rules
from machtrace.audit.scan.app import scan_app
from machtrace.audit.scan.attribution import Evidence, library_of_path, swift_module
from machtrace.audit.scan.link_map import parse_link_map, read_link_map
from machtrace.errors import FormatError
from tests.audit.apps import LLD

ALPHA = """
extern int stat(const char *, void *);
int alpha_size(const char *path) { char buffer[256]; return stat(path, buffer) + buffer[1]; }
"""
BETA = """
extern int statfs(const char *, void *);
__attribute__((noinline))
int beta_space(void) { char buffer[4096]; return statfs("/", buffer) + buffer[9]; }
"""
MAIN = """
extern unsigned long long mach_absolute_time(void);
extern int alpha_size(const char *), beta_space(void);
int main(void) { return (int)mach_absolute_time() + alpha_size("/") + beta_space(); }
"""
TRUTH = {"stat": "Alpha", "statfs": "Beta", "mach_absolute_time": "Demo"}


def linked(zig, llvm, folder, *options):
    """Link two static libraries into one program, and return its path and its map's."""
    parts = []
    for name, source in (("main", MAIN), ("Alpha", ALPHA), ("Beta", BETA)):
        unit = zig(f"{name}.o", source, "arm64-apple-ios15.0", "-c", "-w", *options)
        path = folder / ("Sources" if name == "main" else f"Pods/{name}") / f"{name}.o"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(unit, path)
        parts.append(path)
        if name != "main" and not options:
            parts[-1] = folder / f"lib{name}.a"
            llvm("llvm-ar", "rcs", parts[-1], path)
    program, link_map = folder / "Demo", folder / "Demo.map"
    llvm("ld64.lld", "-arch", "arm64", *LLD, "-map", link_map, "-o", program, *parts)
    return program, link_map


def attributions(program, **options):
    """Return the library and the evidence of each call, by what is called."""
    scan = scan_app(program, options.pop("rules", load_rules()), **options)
    (image,) = scan.images
    found = {site.rule.watch: image.attribution(site) for site in image.scan.sites}
    return {watch: (each.library, each.evidence) for watch, each in found.items()}, scan.problems


@pytest.mark.peer
def test_a_link_map_states_the_library_in_a_stripped_program(zig, llvm, tmp_path):
    program, link_map = linked(zig, llvm, tmp_path)
    llvm("llvm-strip", "-x", program)
    libraries, problems = attributions(program, link_map=read_link_map(link_map))
    assert libraries == {watch: (name, Evidence.LINK_MAP) for watch, name in TRUTH.items()}
    assert not problems
    assert attributions(program)[0] == dict.fromkeys(TRUTH, ("Demo", Evidence.NONE))


@pytest.mark.peer
def test_a_link_map_of_another_build_is_refused(zig, llvm, tmp_path):
    program, link_map = linked(zig, llvm, tmp_path)
    text = link_map.read_text().replace("0x1", "0x2")
    moved = parse_link_map(text.encode(), "Demo.map")
    libraries, problems = attributions(program, link_map=moved)
    assert "another build" in str(problems[0])
    assert set(libraries.values()) == {("Demo", Evidence.NONE)}


@pytest.mark.peer
def test_a_debug_map_states_the_library(zig, llvm, tmp_path):
    program, _ = linked(zig, llvm, tmp_path, "-g")
    libraries, _ = attributions(program)
    assert libraries == {watch: (name, Evidence.DEBUG_MAP) for watch, name in TRUTH.items()}


@pytest.mark.peer
def test_source_paths_in_a_dsym_state_the_library_in_a_stripped_program(zig, llvm, tmp_path):
    parts = []
    for name, source in (("main", MAIN), ("Alpha", ALPHA), ("Beta", BETA)):
        path = "/src/Demo/main.c" if name == "main" else f"/src/Demo/Pods/{name}/{name}.c"
        marked = f'#line 1 "{path}"\n{source}'
        parts.append(zig(f"{name}.o", marked, "arm64-apple-ios15.0", "-c", "-w", "-g"))
    program, symbols = tmp_path / "Demo", tmp_path / "symbols" / "Demo.dSYM"
    llvm("ld64.lld", "-arch", "arm64", *LLD, "-o", program, *parts)
    symbols.parent.mkdir()
    llvm("dsymutil", program, "-o", symbols)
    llvm("llvm-strip", "-S", "-x", program)
    libraries, problems = attributions(program, search=[str(symbols.parent)])
    assert libraries == {watch: (name, Evidence.DWARF) for watch, name in TRUTH.items()}
    assert not problems


SWIFT = """
extern int stat(const char *, void *), lstat(const char *, void *), fstat(int, void *);
int first(const char *) __asm__("_$s5Alpha5firstyyF");
int last(const char *) __asm__("_$s5Alpha4lastyyF");
int other(const char *) __asm__("_$s4Demo5otheryyF");
int first(const char *path) { char buffer[256]; return stat(path, buffer) + buffer[1]; }
__attribute__((noinline)) int between(int x) { char b[256]; return fstat(x, b) + b[1]; }
int last(const char *path) { char buffer[256]; return stat(path, buffer) + buffer[2]; }
int other(const char *path) { char buffer[256]; return lstat(path, buffer) + buffer[2]; }
"""


@pytest.mark.peer
def test_a_swift_module_states_the_library_and_that_of_what_is_between(zig, llvm, tmp_path):
    unit = zig("swift.o", SWIFT + MAIN, "arm64-apple-ios15.0", "-c", "-w")
    program = tmp_path / "Demo"
    llvm("ld64.lld", "-arch", "arm64", *LLD, "-o", program, unit)
    libraries, _ = attributions(program)
    assert libraries == {
        "stat": ("Alpha", Evidence.SWIFT_MODULE),
        "fstat": ("Alpha", Evidence.NEIGHBOURS),
        "lstat": ("Demo", Evidence.SWIFT_MODULE),
        "mach_absolute_time": ("Demo", Evidence.NONE),
    }


OBJC = """
extern int stat(const char *, void *), lstat(const char *, void *);
@interface Root @end @implementation Root @end
@interface ALPFile : Root @end
@implementation ALPFile
- (int)size { char buffer[256]; return stat("/", buffer) + buffer[1]; }
@end
@interface ALPine : Root @end
@implementation ALPine
- (int)size { char buffer[256]; return lstat("/", buffer) + buffer[1]; }
@end
"""
RULES = """
schema = 1
include = ["privacy"]
policies = ["undeclared: ignore", "not in list: fault"]
allowed = ["Demo"]
libraries = [{ name = "Alpha", classes = ["ALP"] }, { name = "Beta", functions = ["beta_"] }]
"""


@pytest.mark.peer
def test_prefixes_of_names_state_the_library(zig, llvm, tmp_path):
    (tmp_path / "rules.toml").write_text(RULES)
    rules = load_rules(tmp_path / "rules.toml")
    source = OBJC + BETA + MAIN.replace('alpha_size("/")', "0")
    unit = zig("objc.o", source, "arm64-apple-ios15.0", "-c", "-w", "-x", "objective-c")
    program = tmp_path / "Demo"
    llvm("ld64.lld", "-arch", "arm64", *LLD, "-o", program, unit)
    libraries, _ = attributions(program, rules=rules)
    assert libraries["stat"] == ("Alpha", Evidence.PREFIX)
    assert libraries["statfs"] == ("Beta", Evidence.PREFIX)
    assert libraries["lstat"][1] is not Evidence.PREFIX  # ALPine is a word, not ALP's Ine


@pytest.mark.parametrize(
    ("path", "member", "library"),
    [
        ("/x/Pods/AFNetworking/AFNetworking/AFURL.m", None, "AFNetworking"),
        ("/x/SourcePackages/checkouts/swift-nio/Sources/NIO/a.swift", None, "swift-nio"),
        ("/x/Carthage/Checkouts/Alamofire/Source/a.swift", None, "Alamofire"),
        ("/x/node_modules/@scope/camera/ios/a.m", None, "camera"),
        ("/x/.pub-cache/hosted/pub.dev/camera-0.9.1/ios/a.m", None, "camera"),
        ("/x/libAlpha.a", "a.o", "Alpha"),
        ("/x/Alpha.framework/Alpha", "a.o", "Alpha"),
        ("/x/Demo.build/Debug-iphoneos/Alpha.build/Objects-normal/arm64/a.o", None, "Alpha"),
        ("/x/Build/Products/Debug-iphoneos/Alpha.o", None, "Alpha"),
        ("/x/Sources/main.o", None, None),
    ],
)
def test_paths_of_package_managers_name_libraries(path, member, library):
    assert library_of_path(path, member) == library


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("_$s5Alpha5firstyyF", "Alpha"),
        ("$s10Foundation4DateVMa", "Foundation"),
        ("_$sSo8UIDeviceC", None),
        ("_$s99Alpha", None),
        ("_main", None),
    ],
)
def test_the_module_is_the_first_identifier_of_a_mangled_name(name, module):
    assert swift_module(name) == module


@pytest.mark.parametrize("data", [b"", b"# Symbols:\n", b"\xff\xfe", b"# Object files:\n[ 1] a"])
def test_what_is_no_link_map_is_refused(data):
    with pytest.raises(FormatError, match="not a link map"):
        parse_link_map(data, "x.map")
