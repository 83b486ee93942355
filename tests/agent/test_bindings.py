"""Targets of watched functions: those that the loader binds without the agent, each call once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from machtrace import read_reports
from tests.agent.build import PROGRAMS, compiler, library, name_of, numbers
from tests.agent.readers import check_readers_agree

pytestmark = pytest.mark.live

PROVIDER, INTERPOSER, INNER, LATER = 1, 2, 3, 4
DEEP, GLOBAL = os.RTLD_DEEPBIND if hasattr(os, "RTLD_DEEPBIND") else 0, os.RTLD_GLOBAL
BINDING = ["lazy", "now"]


def image(folder: Path, stem: str, source: str, *options: str) -> Path:
    """Return a library or a program of one source, built unless it has been."""
    output = folder / name_of(stem, source, options)
    if not output.exists():
        command = [compiler(), "-O2", "-fno-omit-frame-pointer", str(PROGRAMS / source), *options]
        done = subprocess.run(
            [*command, "-o", str(output), "-pthread", "-ldl"],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0 and "static-pie" in stem:
            pytest.skip("no static C library")
        assert done.returncode == 0, done.stderr
    return output


def shared(folder: Path, stem: str, *options: str) -> Path:
    return image(folder, stem, "definition.c", "-fPIC", "-shared", *options)


def versions(folder: Path, name: str) -> str:
    """Return the option that gives all functions a version."""
    script = folder / f"{name}.map"
    script.write_text(f"{name} {{ global: *; }};\n")
    return f"-Wl,--version-script={script}"


def provider(folder: Path) -> Path:
    version = versions(folder, "OBSERVED_1")
    return shared(
        folder, f"number{PROVIDER}_", f"-DNUMBER={PROVIDER}", "-DFUNCTION=observed", version
    )


def interposer(folder: Path, kind: str) -> Path:
    """Return a library with the same function: by the versions that it has."""
    options = {
        "no version table": ("-nostdlib",),
        "a version table": ("-DIMPORTS",),
        "the version": (versions(folder, "OBSERVED_1"),),
        "another version": (versions(folder, "OTHER_1"),),
    }[kind]
    stem = f"number{INTERPOSER}_"
    return shared(folder, stem, f"-DNUMBER={INTERPOSER}", "-DFUNCTION=observed", *options)


def caller(folder: Path, how: str, stem: str = "observed", *options: str) -> Path:
    link = [str(provider(folder)), f"-Wl,-z,{how}", f"-Wl,-rpath,{folder}"]
    defined = (f"-DCALLER=call_{stem}", "-DCALLED=observed")
    return shared(folder, f"{stem}_{how}_", *defined, *options, *link)


def plugin(folder: Path) -> Path:
    """Return a library to load, which needs another one that has functions of its own."""
    own = f"-DNUMBER={INNER}"
    inner = shared(folder, f"number{INNER}_", own, "-DFUNCTION=inner")
    copy = shared(folder, f"number{INNER}_copy_", own, "-DFUNCTION=observed")
    later = shared(folder, f"number{LATER}_", f"-DNUMBER={LATER}", "-DFUNCTION=defined_later")
    link = [str(inner), str(copy), str(later), "-Wl,--no-as-needed", "-Wl,-z,lazy"]
    defined = ("-DCALLER=call_bound", "-DCALLED=observed", "-DSECOND")
    return shared(folder, "plugin_", *defined, "-Wl,--no-as-needed", *link, f"-Wl,-rpath,{folder}")


def program(folder: Path, how: str, *first: Path, has_later: bool = True) -> Path:
    """Return the program; these libraries precede the one that it needs."""
    # What a plugin defines later can be bound at the first call alone.
    later = ["-DLATER"] if how == "lazy" and has_later else []
    link = [*map(str, first), str(caller(folder, how, "observed", *later)), str(provider(folder))]
    options = ["-Wl,--no-as-needed", *link, f"-Wl,-z,{how}", f"-Wl,-rpath,{folder}"]
    options.append("-Wl,--allow-shlib-undefined")
    return image(folder, f"bindings_{how}_", "bindings.c", *options)


def run(
    command: Sequence[object], *preloaded: Path, spool: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    if spool is not None:
        variables |= {"MACHTRACE_SPOOL": str(spool), **variables}
        variables.setdefault("MACHTRACE_WATCH", "observed,inner,defined_later")
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, "LD_PRELOAD": " ".join(map(str, preloaded)), **variables},
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done


def calls(spool: Path) -> dict[str, int]:
    read = check_readers_agree(spool)
    sums = {rule.symbol: 0 for rule in read.rules}
    for rule, _, stack, count in read.sums().tolist():
        sums[read.rules[rule].symbol] += count
        assert read.stack(stack)
    return sums


def bound(text: str) -> dict[tuple[str, str], int]:
    """Return the numbers of the libraries to which the loader logs that it binds functions."""
    line = re.compile(
        r"binding file (\S+) \[0\] to \S*/number(\d)_\S* \[0\]: normal symbol `(\w+)'"
    )
    return {
        (Path(file).name.partition("_")[0], symbol): int(number)
        for file, number, symbol in line.findall(text)
    }


KINDS = ["no version table", "a version table", "the version", "another version"]
SCOPES = [0, DEEP, GLOBAL]


def check_same(
    command: Sequence[object], tmp_path: Path, agent: Path, *preloaded: Path
) -> dict[str, float]:
    """Check that calls reach the functions that the loader binds without the agent, each once."""
    alone = run(command, *preloaded, LD_DEBUG="bindings")
    expected = numbers(alone.stdout)
    loaded = bound(alone.stderr)
    assert loaded["bindings", "observed"] == expected["program"]
    assert loaded["observed", "observed"] == expected["library"]
    assert loaded["plugin", "observed"] == expected["plugin"]
    assert loaded["plugin", "inner"] == expected["inner"] == INNER
    for place, order in enumerate(((agent, *preloaded), (*preloaded, agent))):
        spool = tmp_path / f"{place}.spool"
        done = run(command, *order, spool=spool)
        assert (numbers(done.stdout), done.stderr) == (expected, "")
        sums = calls(spool)
        assert sums["inner"] == 10
        assert sums["observed"] + sums["defined_later"] == 30 + (expected["later"] != 0) * 10
    return expected


@pytest.mark.parametrize("flags", SCOPES)
@pytest.mark.parametrize("how", BINDING)
def test_each_image_calls_what_the_loader_binds(
    built: Path, tmp_path: Path, how: str, flags: int
) -> None:
    """A loaded library's own scope is last, but first if it is bound deeply."""
    command = [program(built, how), "scopes", plugin(built), flags]
    result = check_same(command, tmp_path, library(built))
    assert result["program"] == result["library"] == PROVIDER
    assert result["plugin"] == (INNER if flags == DEEP else PROVIDER)
    if flags == GLOBAL and how == "lazy":
        assert result["later"] == LATER


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", BINDING)
def test_preloaded_interposers_are_called(built: Path, tmp_path: Path, how: str, kind: str) -> None:
    command = [program(built, how), "scopes", plugin(built), 0]
    result = check_same(command, tmp_path, library(built), interposer(built, kind))
    expected = PROVIDER if kind == "another version" else INTERPOSER
    assert result["program"] == result["library"] == expected
    assert result["plugin"] == INTERPOSER  # which names no version


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("how", BINDING)
def test_linked_interposers_are_called(built: Path, tmp_path: Path, how: str, kind: str) -> None:
    command = [program(built, how, interposer(built, kind)), "scopes", plugin(built), DEEP]
    result = check_same(command, tmp_path, library(built))
    assert (result["program"], result["library"]) == (INTERPOSER, INTERPOSER)
    assert result["plugin"] == INNER


def test_threads_bind_at_once(built: Path, tmp_path: Path) -> None:
    count = 16
    for number in range(5):
        spool = tmp_path / f"{number}.spool"
        done = run(
            [program(built, "lazy"), "threads", count, PROVIDER], library(built), spool=spool
        )
        assert numbers(done.stdout) == {"wrong": 0}
        assert calls(spool)["observed"] == count * 2000


def test_stubs_of_unloaded_images_are_used_again(built: Path, tmp_path: Path) -> None:
    """There are 2,048: a library that is at another address each time needs more."""
    rounds, spool = 2_200, tmp_path / "app.spool"
    loaded = caller(built, "lazy", "inner")
    done = run([program(built, "lazy"), "churn", loaded, rounds], library(built), spool=spool)
    result = numbers(done.stdout)
    assert (result["sum"], done.stderr) == (rounds * PROVIDER, "")
    assert calls(spool)["observed"] == rounds
    if result["moved"] < 2_048:
        pytest.skip("the library is loaded at few addresses")


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("how", BINDING)
def test_calls_by_addresses_of_a_program_s_linkage_table_are_counted_once(
    built: Path, tmp_path: Path, how: str, *, fixed: bool
) -> None:
    """By calls, by the global offset table alone, by tables of data, and by lookups."""
    libraries = (
        caller(built, how),
        caller(built, how, "indirectly", "-fno-plt"),
        shared(built, f"tables_{how}_", "-DTABLES", str(provider(built)), f"-Wl,-rpath,{built}"),
    )
    link = ["-Wl,--no-as-needed", *map(str, libraries), str(provider(built)), f"-Wl,-z,{how}"]
    place = ["-no-pie", "-fno-pie"] if fixed else ["-pie", "-fPIE"]
    app = image(built, f"canonical_{how}_", "canonical.c", *place, *link, f"-Wl,-rpath,{built}")
    spool = tmp_path / "app.spool"
    done = run([app, plugin(built)], library(built), spool=spool)
    assert (numbers(done.stdout), done.stderr) == ({"sum": 70 * PROVIDER}, "")
    assert calls(spool)["observed"] == 70


def test_auditors_have_slots_that_are_said_to_be_unbound(built: Path, tmp_path: Path) -> None:
    """The loader has another resolver for them: lazy slots stay as they are."""
    auditor = image(built, "auditor_", "auditor.c", "-fPIC", "-shared")
    command = [program(built, "lazy", has_later=False), "threads", 1, PROVIDER]
    for is_bound in (False, True):
        spool = tmp_path / f"{is_bound}.spool"
        variables = {"LD_AUDIT": str(auditor), "MACHTRACE_WATCH": "observed"}
        variables |= {"LD_BIND_NOW": "1"} if is_bound else {}
        done = run(command, library(built), spool=spool, **variables)
        assert numbers(done.stdout) == {"wrong": 0}
        assert calls(spool)["observed"] == is_bound * 2000
        (report,) = read_reports(spool)
        read = check_readers_agree(spool)
        (rule,) = read.rules
        if is_bound:
            assert (rule.state, read.unbound, done.stderr) == (1, (), "")
            continue
        assert rule.other == "the loader has not bound it: set LD_BIND_NOW=1"
        (line,) = read.unbound
        assert line.startswith("import slots that the loader has not bound are not watched: ")
        assert line.endswith("; set LD_BIND_NOW=1")
        assert done.stderr == f"machtrace: {line}\n"
        assert line in report.warnings


def test_static_programs_are_left_alone(built: Path, tmp_path: Path) -> None:
    """They have no loader, so that nothing is preloaded."""
    app = image(built, "static-pie_", "auditor.c", "-static-pie", "-Dla_version=main", "-fPIE")
    spool = tmp_path / "app.spool"
    done = subprocess.run(
        [app],
        env={"LD_PRELOAD": str(library(built)), "MACHTRACE_SPOOL": str(spool)},
        check=False,
        capture_output=True,
    )
    assert done.stderr == b""
    assert not spool.exists()


@pytest.mark.parametrize("variable", ["MACHTRACE_WATCH", "MACHTRACE_COUNT"])
@pytest.mark.parametrize("watched", ["malloc", "free", "malloc,free"])
def test_an_allocator_is_preloaded(
    tmp_path: Path, built: Path, variable: str, watched: str
) -> None:
    """It releases what it allocates, also in programs that are bound late."""
    allocators = [
        *Path("/usr/lib").glob("*/libjemalloc.so.2"),
        *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"),
    ]
    perl = shutil.which("perl")
    if not allocators or perl is None:
        pytest.skip("no allocator to preload, or no perl")
    spool = tmp_path / "app.spool"
    code = "my %seen; $seen{$_} = [$_] for 1 .. 1000; print scalar keys %seen"
    done = run(
        [perl, "-e", code], library(built), allocators[0], spool=spool, **{variable: watched}
    )
    assert (done.stdout, done.stderr) == ("1000", "")
