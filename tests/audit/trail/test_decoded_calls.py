"""Askers of recorded calls in real code: four machines, stripped, with the linker's map."""

import struct

import pytest

from machtrace.audit.observed.coverage import coverage_of
from machtrace.audit.rules import load_rules
from machtrace.audit.scan.link_map import read_link_map
from machtrace.audit.trail.owners import Reason
from tests.audit.trail.decoded import CHAINS, MESSAGE, NO_WAY, VENEERS, Program

TARGETS = {
    "arm64 macOS": ("arm64-apple-macos13.0",),
    "x86-64 macOS": ("x86_64-apple-macos13.0",),
    "arm64 Linux": ("aarch64-linux-gnu",),
    "x86-64 Linux": ("x86_64-linux-gnu",),
    "x86-64 Linux without stubs": ("x86_64-linux-gnu", "-fno-plt"),
    "arm64 Linux without stubs": ("aarch64-linux-gnu", "-fno-plt"),
}
LC_ENCRYPTION_INFO_64, LC_UUID = 0x2C, 0x1B
pytestmark = pytest.mark.peer


@pytest.fixture(scope="module", params=TARGETS)
def program(request, zig, llvm, tmp_path_factory):
    assert zig  # or the test is skipped
    target, *flags = TARGETS[request.param]
    return Program(tmp_path_factory.mktemp("decoded"), target, llvm, *flags)


def judged(program, chains, **options):
    rules = load_rules()
    return program.answers(list(chains.values()), rules, read_link_map(program.link_map), **options)


def test_the_asker_is_the_function_that_called_or_jumped(program):
    chains = CHAINS | (MESSAGE if program.is_darwin else {})
    chains |= VENEERS if program.is_arm64 else {}
    names, app, *_ = judged(program, chains)
    assert app.problems == ()
    assert dict(zip(chains, names, strict=True)) == {
        name: (asker, owner) for name, (_, _, asker, owner) in chains.items()
    }


def test_an_unknown_asker_has_its_reason_and_the_candidates(program):
    chains = {"a table of both": CHAINS["a table of both"], **NO_WAY}
    names, _, result, _ = judged(program, chains)
    assert names == [("?", "?"), ("?", "?")]
    reasons = [Reason(int(result.asker_reason[row])) for row in result.row_of_call]
    assert reasons == [Reason.SEVERAL, Reason.UNKNOWN_JUMP]
    candidates = result.candidates[int(result.row_of_call[0])]
    assert {result.library_name(number) for number in candidates} >= {"alpha", "beta"}


def test_sites_are_reached_by_return_addresses_and_jumps(program):
    _, app, result, trail = judged(program, CHAINS)
    coverage = coverage_of(trail, result, app)
    reached = {(site.site.library, site.site.site.rule.watch): 0 for site in coverage.sites}
    sites = dict(reached)
    for each in coverage.sites:
        key = each.site.library, each.site.site.rule.watch
        sites[key] += 1
        reached[key] += each.calls > 0
    jumps = 1 if program.is_darwin else 0
    # direct, tail, last, stat in both; a method of alpha, and app_own.
    assert sites == {
        ("alpha", "stat"): 4 + jumps,
        ("alpha", "fstat"): 1,
        ("beta", "stat"): 4,
        ("beta", "fstat"): 1,
        ("App", "stat"): 1 + (program.is_arm64 and program.is_darwin),  # a veneer with a name
    }
    assert reached == {
        ("alpha", "stat"): 4,
        ("alpha", "fstat"): 1,
        ("beta", "stat"): 2,
        ("beta", "fstat"): 0,
        ("App", "stat"): 1,
    }
    assert coverage.unlisted == ()


def test_an_image_of_another_build_is_not_read(program):
    other = {"uuid": "00" * 20 if not program.is_darwin else "00" * 16}
    names, app, *_ = judged(program, CHAINS, **other)
    assert {asker for asker, _ in names} == {"App"}
    assert (app.ranges, app.sites) == ({}, ())
    assert "or another build of it" in app.problems[0]


def test_encrypted_code_is_stated_and_the_map_still_serves(program, tmp_path):
    if not program.is_darwin:
        pytest.skip("no ELF is encrypted")
    data = bytearray(program.path.read_bytes())
    (count,) = struct.unpack_from("<I", data, 16)
    at, text = 32, None
    for _ in range(count):
        kind, size = struct.unpack_from("<II", data, at)
        if kind == LC_UUID:
            at_uuid = at
        if kind == 0x19 and data[at + 8 : at + 14] == b"__TEXT":
            text = struct.unpack_from("<QQQQ", data, at + 24)
        at += size
    struct.pack_into("<II", data, 20, *struct.unpack_from("<II", data, 20))
    command = struct.pack("<IIIIII", LC_ENCRYPTION_INFO_64, 24, 0, text[3], 1, 0)
    data[at : at + 24] = command
    sizes = struct.unpack_from("<II", data, 16)
    struct.pack_into("<II", data, 16, sizes[0] + 1, sizes[1] + 24)
    assert at_uuid
    (tmp_path / "App").write_bytes(data)
    names, app, *_ = judged(program, CHAINS, path=tmp_path / "App")
    assert any("encrypted" in problem for problem in app.problems)
    assert names[list(CHAINS).index("direct")] == ("alpha", "alpha")
    assert names[list(CHAINS).index("own")] == ("App", "App")
