"""``machtrace atos``: its answers, next to a peer's and to the source's lines."""

import os
import re
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from machtrace.formats.macho.header import CPU_TYPE_ARM64, CPU_TYPE_X86_64
from tests.support.command_line import run_command
from tests.support.compilers.executables import compile_elf, compile_macho
from tests.support.writers.macho import BuiltSlice, BuiltSymbol, ThinFile, fat_file

INLINED = """\
volatile int sink;
static inline __attribute__((always_inline)) int leaf(int n) {
  sink = n;
  return n * 3;
}
static inline __attribute__((always_inline)) int middle(int n) {
  return leaf(n + 1);
}
__attribute__((noinline)) int outer(int n) {
  sink = 1;
  return middle(n) + 1;
}
int main(int count, char **words) {
  (void)words;
  return outer(count);
}
"""
BASE = 0x100000000
CODE = 0x400
SYMBOLS = (
    BuiltSymbol("_first", BASE + CODE),
    BuiltSymbol("__ZN5shape3Box4areaEii", BASE + CODE + 0x20),
)
THIN = ThinFile(
    vmaddr=BASE,
    code=bytes(0x80),
    symbols=SYMBOLS,
    function_starts=b"\x80\x08\x20\x20\0",  # of CODE and two more, 0x20 apart: ULEB128 steps
)


@pytest.fixture
def atos(tmp_path, monkeypatch):
    """Return a function that runs the command: in this process, or with input in a new one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MACHTRACE_SYMBOLS", str(tmp_path / "symbols"))

    return partial(run_command, "atos")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Return an ELF program with lines and inlined calls, and its function ``outer``'s address."""
    if not (shutil.which("cc") and shutil.which("nm")):
        pytest.skip("a C compiler or nm is not installed")
    folder = tmp_path_factory.mktemp("program")
    (folder / "inlined.c").write_text(INLINED)
    path = compile_elf([folder / "inlined.c"], folder / "prog", options=["-g", "-O2"])
    listed = subprocess.run(
        ["nm", "-S", path], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    address, size = re.search(r"^(\w+) (\w+) T outer$", listed, re.MULTILINE).groups()
    return path, int(address, 16), int(size, 16)


@pytest.fixture
def thin(tmp_path):
    """Return a Mach-O of three functions, the last without a name."""
    path = tmp_path / "App"
    path.write_bytes(THIN.build())
    return path


def test_usage_errors_are_apple_s(atos):
    """The output is the line that scripts match, then the usage."""
    done = atos()

    assert done.returncode == 1
    assert done.stderr.startswith(
        "[invalid usage]: no processes or executables specified\n\nUsage:"
    )
    assert atos("-h").returncode == 0


def test_the_forms_of_answers(atos, thin):
    """A name with an offset; demangled; no name in a function, nor outside; not in the image."""
    done = atos(
        "-o", thin, "100000404", "0x100000428", "0x100000444", "0x1000", "what", "0x10000000f"
    )

    assert done.stdout == (
        "first (in App) + 4\n"
        "shape::Box::area(int, int) (in App) + 8\n"
        "0x0000000100000444 (in App) + 4\n"
        "0x1000\n"
        "what\n"
        "0x000000010000000f (in App)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("options", "address", "shown"),
    [
        (["-l", "0x5000000"], "0x5000444", "0x05000444"),
        (["-s", "0x4000"], "0x100004444", "0x0000000100004444"),
        (["-s", "-0x1000"], "0xfffff444", "0xfffff444"),
        (["-offset"], "0x444", "0x0000000100000444"),
    ],
)
def test_ways_to_say_where_the_image_is(atos, thin, options, address, shown):
    """All lead to the same function; an address without a name is shown as Apple's command does."""
    done = atos("-o", thin, *options, address)

    assert f"{shown} (in App) + 4\n" == done.stdout


def test_where_a_kernel_s_text_was_loaded(atos, thin):
    """``-textExecAddress`` is the address of a segment that only kernels and kexts have."""
    refused = atos("-o", thin, "-textExecAddress", "9000000", "9000000")
    assert (refused.returncode, "no segment __TEXT_EXEC" in refused.stderr) == (1, True)

    # The segment behind the code, called so: its stated address is 0x100 behind the first function.
    thin.write_bytes(THIN.build().replace(b"__LINKEDIT\0", b"__TEXT_EXEC"))
    done = atos("-o", thin, "-textExecAddress", "0x9000000", "8ffff04")
    assert done.stdout == "first (in App) + 4\n"


def test_with_inlined_calls_each_answer_ends_with_an_empty_line(atos, thin):
    """It is the delimiter's newline after each call, and one for the answer."""
    addresses = ("100000404", "7")

    assert atos("-o", thin, "-i", *addresses).stdout == "first (in App) + 4\n\n7\n\n"
    assert atos("-o", thin, "-i", "-d", "@", *addresses).stdout == "first (in App) + 4@\n7@\n"


@pytest.mark.peer
def test_lines_and_inlined_calls_are_those_of_the_source(atos, program):
    """Without ``-i`` the function that holds the address, with the line in it."""
    path, start, size = program
    texts = [atos("-o", path, "-i", *options, *range_of(start, size)).stdout
             for options in ([], ["-fullPath"])]  # fmt: skip
    answers = texts[0].split("\n\n")[:-1]
    plain = atos("-o", path, *range_of(start, size)).stdout.splitlines()

    assert size == len(answers) == len(plain)
    chain = ("leaf (in prog) (inlined.c:3)", "middle (in prog) (inlined.c:7)")
    assert "\n".join((*chain, "outer (in prog) (inlined.c:11)")) in answers
    assert [answer.splitlines()[-1] for answer in answers] == plain
    assert texts[0] == texts[1].replace(f"{path.parent}/", "")


@pytest.mark.peer
@pytest.mark.skipif(
    not shutil.which("llvm-symbolizer-19"), reason="llvm-symbolizer-19 is not installed"
)
def test_calls_are_those_of_a_peer(atos, program):
    """Names, files and lines of every address of a function, by llvm-symbolizer."""
    path, start, size = program
    words = [f"{address:#x}" for address in range(start, start + size)]
    peer = subprocess.run(
        ["llvm-symbolizer-19", f"--obj={path}", *words],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    expected = []
    for block in peer.strip().split("\n\n"):
        lines = block.splitlines()
        expected.append(
            [
                f"{name} (in prog) ({place.split(':')[0]}:{place.split(':')[1]})"
                for name, place in zip(lines[::2], lines[1::2], strict=True)
            ]
        )
    ours = atos("-o", path, "-i", "-fullPath", *words).stdout

    assert [block.splitlines() for block in ours.split("\n\n")[:-1]] == expected


def range_of(start, size):
    """Return every address of a function."""
    return [f"{address:x}" for address in range(start, start + size)]


@pytest.mark.peer
def test_addresses_come_from_files_and_from_standard_input(atos, thin, tmp_path):
    """Any whitespace separates them; the last newline is optional."""
    text = "100000404\t0x100000428\n\n 100000444"
    (tmp_path / "addresses").write_text(text)
    answers = atos("-o", thin, "100000404", "100000428", "100000444").stdout

    assert answers == atos("-o", thin, "-f", tmp_path / "addresses").stdout
    assert answers == atos("-o", thin, input=text).stdout
    assert atos("-o", thin, input="").stdout == ""


@pytest.mark.peer
def test_each_line_is_answered_before_the_next_is_written(thin):
    """Programs may keep the command running."""
    command = [sys.executable, "-m", "machtrace", "atos", "-o", thin]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        for address, answer in (("100000404", "first"), ("zz", "zz"), ("100000428", "shape::")):
            running.stdin.write(f"{address}\n")
            running.stdin.flush()
            assert running.stdout.readline().startswith(answer)
        running.stdin.close()
        assert running.wait(timeout=30) == 0


@pytest.mark.peer
def test_many_addresses_at_once(atos, thin):
    """A hundred thousand addresses from a pipe are answered in order."""
    words = [f"{BASE + CODE + number % 0x80:#x}" for number in range(100_000)]
    lines = atos("-o", thin, input="\n".join(words)).stdout.splitlines()

    assert len(lines) == 100_000
    assert lines[:0x80] == lines[0x80:0x100]
    assert lines[0x1F] == "first (in App) + 31"
    assert lines[0x20] == "shape::Box::area(int, int) (in App) + 0"


def test_slices_of_a_fat_file(atos, tmp_path):
    """``-arch`` selects one; without it a message names the selected one."""
    other = ThinFile(
        vmaddr=BASE, cputype=CPU_TYPE_X86_64, code=bytes(0x80), function_starts=b"\x80\x08\x00",
        symbols=(BuiltSymbol("_other", BASE + CODE),),
    ).build()  # fmt: skip
    arm = THIN.build()
    path = tmp_path / "App"
    rows = [(CPU_TYPE_ARM64, 0, 0x1000, len(arm)), (CPU_TYPE_X86_64, 3, 0x4000, len(other))]
    path.write_bytes(fat_file([BuiltSlice(*row) for row in rows], [(0x1000, arm), (0x4000, other)]))

    assert atos("-o", path, "-arch", "arm64", "100000400").stdout == "first (in App) + 0\n"
    assert atos("-o", path, "-arch", "x86_64", "100000400").stdout == "other (in App) + 0\n"
    assert "is for arm64, x86_64" in atos("-o", path, "100000400").stderr
    wrong = atos("-o", path, "-arch", "armv7", "100000400")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith(
        f"atos cannot load symbols for the file {path} for architecture armv7."
    )


@pytest.mark.parametrize(
    "place",
    ["App.app/App", "App.app/Contents/MacOS/App", "App.app.dSYM/Contents/Resources/DWARF/App"],
)
def test_a_bundle_is_the_file_in_it(atos, tmp_path, place):
    """The bundles are an iOS app, a macOS app and a dSYM."""
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_bytes(THIN.build())
    bundle = tmp_path / Path(place).parts[0]

    assert atos("-o", bundle, "100000400").stdout == "first (in App) + 0\n"


@pytest.mark.parametrize("content", [b"", b"text", THIN.build()[:100], b"\x7fELF"])
def test_a_file_without_symbols_is_an_error(atos, tmp_path, content):
    """The error begins as Apple's, and the status is 1."""
    (tmp_path / "x").write_bytes(content)
    for path in (tmp_path / "x", tmp_path / "nowhere", tmp_path):
        done = atos("-o", path, "1")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"atos cannot load symbols for the file {path}. (")
        assert done.stderr.splitlines()[1].startswith("hint: ")


def test_the_first_file_that_knows_an_address_answers(atos, thin, tmp_path):
    path = tmp_path / "Other"
    path.write_bytes(
        ThinFile(vmaddr=0x5000, code=bytes(8), symbols=(BuiltSymbol("_else", 0x5400),)).build()
    )

    done = atos("-o", thin, "-o", path, "0x100000400", "0x5400", "0x9990000")
    assert done.stdout == "first (in App) + 0\nelse (in Other) + 0\n0x9990000\n"


@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="other processes are read on Linux only")
def test_a_running_process(atos, tmp_path):
    """It is selected by its id or a part of its name; the header shows both."""
    if not (shutil.which("cc") and shutil.which("nm")):
        pytest.skip("a C compiler or nm is not installed")
    name = f"atos-test-{os.getpid()}-sleeper"  # of this run alone
    path = tmp_path / name
    (tmp_path / "a.c").write_text("#include <unistd.h>\nint main(void) {\n  return pause();\n}\n")
    compile_elf([tmp_path / "a.c"], path, options=["-g", "-no-pie"])
    listed = subprocess.run(["nm", path], capture_output=True, text=True, check=True, timeout=30)
    address = re.search(r"^(\w+) T main$", listed.stdout, re.MULTILINE)[1]
    with subprocess.Popen([path]) as running:
        try:
            while Path(f"/proc/{running.pid}/exe").readlink() != path:
                time.sleep(0.01)
            by_id = atos("-p", running.pid, "-printHeader", address, "1")
            by_name = atos("-p", name.removesuffix("-sleeper"), address, "1")
        finally:
            running.kill()

    answer = f"main (in {name}) (a.c:2)\n1\n"
    header = f"Looking up symbols in process {running.pid} named:  {name}\n"
    assert (header + answer, 0) == (by_id.stdout, by_id.returncode), by_id.stderr
    assert answer == by_name.stdout, by_name.stderr
    gone = atos("-p", "no-such-program-anywhere", "1")
    assert gone.returncode == 1
    assert "0 processes run an executable called" in gone.stderr


@pytest.mark.peer
def test_swift_names_are_short_and_dedup_lists_merged_functions(atos, tmp_path):
    """Swift names are as in Apple's documentation; ``-dedup`` shows each name of the code."""
    symbols = (
        BuiltSymbol("_$s4main3FooV3baryyF", BASE + CODE),
        BuiltSymbol("_one", BASE + CODE + 0x20),
        BuiltSymbol("_two", BASE + CODE + 0x20),
    )
    path = tmp_path / "App"
    path.write_bytes(
        ThinFile(
            vmaddr=BASE, code=bytes(0x80), symbols=symbols, function_starts=b"\x80\x08\x20\0"
        ).build()
    )

    plain = atos("-o", path, "100000400", "100000420").stdout
    assert plain == "Foo.bar() (in App) + 0\none (in App) + 0\n"
    many = " ".join(["100000420"] * 20)
    told = atos("-o", path, "-dedup", "100000420").stdout
    assert told == "one, two (in App) + 0\n"
    assert told * 20 == atos("-o", path, "-dedup", input=many).stdout


@pytest.mark.peer
@pytest.mark.skipif(not shutil.which("llvm-nm-19"), reason="llvm-nm-19 is not installed")
def test_a_real_mach_o(atos, tmp_path):
    """The package ziglang links it; a stub has the name that Apple's command shows."""
    source = tmp_path / "a.cpp"
    source.write_text(
        'extern "C" int puts(const char *);\n'
        'namespace shape { __attribute__((noinline)) int area(int w) { return w * puts(""); } }\n'
        'extern "C" int main(int n, char **) { return shape::area(n); }\n'
    )
    path = compile_macho([source], tmp_path / "prog")
    listed = _told("llvm-nm-19", path)
    address = int(re.search(r"^(\w+) [Tt] __ZN5shape4areaEi$", listed, re.MULTILINE)[1], 16)
    stubs = _told("llvm-objdump-19", "--macho", "--indirect-symbols", path)
    stub = int(re.search(r"__stubs\).*?(0x\w+) +\d+ _puts", stubs, re.DOTALL)[1], 16)

    loaded = [f"{one + 0x100000004:x}" for one in (address, stub)]
    assert (
        atos("-o", path, "-l", "0x200000000", *loaded).stdout
        == "shape::area(int) (in prog) + 4\nDYLD-STUB$$puts (in prog) + 4\n"
    )


def _told(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


@pytest.mark.peer
def test_nothing_slow_is_imported_for_an_answer(thin):
    """Importing the command line's libraries takes longer than the answer."""
    code = (
        "import sys; sys.argv = ['machtrace', 'atos', '-o', sys.argv[1], '100000400']\n"
        "from machtrace.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'typer', 'rich', 'click', 'symbolic'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, thin], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "first (in App) + 0\n[]\n"
