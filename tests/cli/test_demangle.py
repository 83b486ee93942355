"""``machtrace demangle``: names in text are replaced, and every other byte stays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import machtrace as mt
from machtrace.cli import demangle

COMMAND = [sys.executable, "-m", "machtrace", "demangle"]
CXXFILT = shutil.which("llvm-cxxfilt-19") or shutil.which("llvm-cxxfilt")


def filtered(data: bytes, *words: str) -> bytes:
    """Return the filter's output for ``data``."""
    done = subprocess.run([*COMMAND, *words], input=data, capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout


def pieces(monkeypatch, *reads: bytes, simplified: bool = False) -> list[bytes]:
    """Return the filter's writes, if standard input arrives in these reads."""
    rest = iter((*reads, b""))
    monkeypatch.setattr(demangle, "_read", lambda: next(rest))
    return list(demangle.filtered_input(simplified))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"_Z3foov", b"foo()"),
        (b"at _Z3foov+12\n", b"at foo()+12\n"),
        (b"_Z3foov _Z3barv\r\n", b"foo() bar()\r\n"),
        (b"<__Z3foov>", b"<foo()>"),
        (b"___Z3foov_block_invoke", b"invocation function for block in foo()"),
        (b"calls _Z3foov.", b"calls foo()."),
        (b"_ZNSt6thread4joinEv@@GLIBCXX_3.4.11", b"std::thread::join()@@GLIBCXX_3.4.11"),
        (b"[_Znwm@plt] _Z3foov@ _Z3foov@1", b"[operator new(unsigned long)@plt] foo()@ foo()@1"),
        (b"__imp__Z3foov", b"import thunk for foo()"),
        (b"$s3Lab3runyySiF _$s3Lab3runyySiF", b"Lab.run(Swift.Int) -> () Lab.run(Swift.Int) -> ()"),
        (b"_RNvC1a1b _ZN1a1b17h0123456789abcdefE", b"a::b a::b::h0123456789abcdef"),
        (b"x_Z3foov 1_Z3foov ._Z3foov $_Z3foov", b"x_Z3foov 1_Z3foov ._Z3foov $_Z3foov"),
        (b"_Z _ZZZ _R $s _T0", b"_Z _ZZZ _R $s _T0"),
        (b"\xff\x00_Z3foov\x00\xfe\n\n", b"\xff\x00foo()\x00\xfe\n\n"),
        (b"", b""),
    ],
)
def test_names_in_text_are_replaced(monkeypatch, text: bytes, expected: bytes) -> None:
    """Names inside other words stay, and so do words with a mangled name's prefix only."""
    assert b"".join(pieces(monkeypatch, text)) == expected


def test_the_simplified_form_omits_parameters(monkeypatch) -> None:
    text = b"_Z3fooi $s3Lab3runyySiF _Z3fooi@@V_1.2.\n"
    found = pieces(monkeypatch, text, simplified=True)
    assert b"".join(found) == b"foo run(_:) foo.\n"


@given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=20))
@example(b"_Z3foov", [1] * 7)
@example(b"a @__swiftmacro_1a13testStringifyAABbySi_SitF9stringifyfMf1_ b", [3, 1, 1, 30])
def test_output_does_not_depend_on_the_reads(data: bytes, sizes: list[int]) -> None:
    """A name may arrive in parts."""
    reads, rest = [], data.replace(b"\xf0", b"_Z3foov")
    whole = rest
    for size in sizes:
        reads.append(rest[:size])
        rest = rest[size:]
    with pytest.MonkeyPatch.context() as patch:
        parts = b"".join(pieces(patch, *filter(None, (*reads, rest))))
        assert parts == b"".join(pieces(patch, *filter(None, [whole])))


@given(st.binary(max_size=300))
def test_text_without_names_stays(data: bytes) -> None:
    """All bytes are preserved, in any encoding."""
    text = data.replace(b"_", b"-").replace(b"$", b"-")
    with pytest.MonkeyPatch.context() as patch:
        assert b"".join(pieces(patch, *filter(None, [text]))) == text


def test_a_run_too_long_for_a_name_is_copied_as_it_arrives(monkeypatch) -> None:
    """Memory does not grow with a line; the next name is found."""
    run = b"_Z" + b"3" * 70_000
    found = pieces(monkeypatch, run, run, b"v _Z3foov\n")
    assert b"".join(found) == run + run + b"v foo()\n"
    assert max(map(len, found)) == len(run)


@pytest.mark.peer
def test_each_read_of_a_pipe_is_answered_at_once() -> None:
    """A line appears before the next one is written."""
    pipe = subprocess.PIPE
    with subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe) as process:
        for line, answer in ((b"_Z3foov\n", b"foo()\n"), (b"_Z3barv\n", b"bar()\n")):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == answer
        process.stdin.write(b"_Z3foov")
        process.stdin.close()
        assert process.stdout.read() == b"foo()"
    assert process.returncode == 0


@pytest.mark.peer
def test_an_interruption_ends_it_quietly() -> None:
    """The status is that of shells."""
    pipe = subprocess.PIPE
    with subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        process.stdin.write(b"_Z3foov\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"foo()\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b""
    assert process.returncode == 130


@pytest.mark.peer
def test_a_reader_that_closes_the_pipe_ends_it_quietly(tmp_path: Path) -> None:
    text = tmp_path / "names"
    text.write_bytes(b"_Z3foov\n" * 200_000)
    line = f"'{sys.executable}' -m machtrace demangle < '{text}' | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"foo()\n", b"")


@pytest.mark.peer
def test_closed_standard_input_is_an_error() -> None:
    """The error is a fact and a hint, with status 1."""
    line = 'exec "$0" -m machtrace demangle <&-'
    done = subprocess.run(
        ["/bin/sh", "-c", line, sys.executable], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "standard input" in done.stderr.splitlines()[0]


@pytest.mark.peer
def test_names_are_arguments_too() -> None:
    """Each argument is a name or text with names, and has one line."""
    words = ["_Z3foov", "plain", "_Z3foov+4", "_Z6gr\u00f6\u00dfev"]
    done = subprocess.run([*COMMAND, *words], capture_output=True, check=True)
    lines = done.stdout.decode().splitlines()
    assert lines[:3] == ["foo()", "plain", "foo()+4"]
    assert lines[3] == mt.demangle(words[3])


def test_the_root_function() -> None:
    """Names are full or simplified; other names stay."""
    assert mt.demangle("_Z3fooi") == "foo(int)"
    assert mt.demangle("_Z3fooi", simplified=True) == "foo"
    assert mt.demangle("main") == "main"


@pytest.mark.peer
@pytest.mark.skipif(CXXFILT is None, reason="llvm-cxxfilt is not installed")
@pytest.mark.parametrize("library", ["libstdc++.so.6", "libsymbolic", "libLLVM"])
def test_symbol_lists_as_llvm_filters_them(library: str) -> None:
    """The input is ``nm``'s output for real libraries, compared line by line."""
    path = _library(library)
    nm = shutil.which("nm") or shutil.which("llvm-nm-19")
    if path is None or nm is None:
        pytest.skip(f"{library} or nm is not installed")
    listed = subprocess.run([nm, "-D", path], capture_output=True, check=True).stdout
    lines = listed.splitlines(keepends=True)
    sample = b"".join(lines[:: max(1, len(lines) // 20_000)])
    assert sample.count(b"_Z") > 100
    theirs = subprocess.run([CXXFILT], input=sample, capture_output=True, check=True).stdout
    ours = filtered(sample)

    # Where llvm-cxxfilt leaves a name, ours may know it: transactional clones, Rust. Functions that
    # have a lambda as a template argument have wrong parameters in its output.
    lines = zip(sample.splitlines(), ours.splitlines(), theirs.splitlines(), strict=True)
    different = [line for line in lines if line[1] != line[2] and line[0] != line[2]]
    assert [line for line in different if b"17h" not in line[0] and b"Ul" not in line[0]] == []


def _library(name: str) -> str | None:
    folders = [Path("/usr/lib"), Path("/usr/lib64"), Path("/lib"), Path(sys.prefix) / "lib"]
    for folder in folders:
        for found in sorted(folder.glob(f"**/*{name}*.so*")) + sorted(folder.glob(f"**/{name}*")):
            if found.is_file() and os.access(found, os.R_OK) and found.stat().st_size > 1 << 16:
                return str(found)
    return None
