"""The arguments of ``machtrace atos``, in Apple's spelling."""

import pytest

from machtrace.cli.atos.arguments import (
    AddressMode,
    AtosUsageError,
    parse_address,
    parse_arguments,
)


@pytest.mark.parametrize(
    ("words", "mode", "base"),
    [
        ([], AddressMode.STATED, 0),
        (["-l", "0x104480000"], AddressMode.LOADED, 0x104480000),
        (["-l", "104480000"], AddressMode.LOADED, 0x104480000),
        (["-l0x104480000"], AddressMode.LOADED, 0x104480000),
        (["-s", "0x4000"], AddressMode.SLID, 0x4000),
        (["-s", "-0x4000"], AddressMode.SLID, -0x4000),
        (["-offset"], AddressMode.OFFSET, 0),
        (["--offset"], AddressMode.OFFSET, 0),
        (["-textExecAddress", "0xfffffff007004000"], AddressMode.TEXT_EXEC, 0xFFFFFFF007004000),
    ],
)
def test_where_addresses_count_from(words, mode, base):
    """Numbers are hexadecimal with or without 0x, as *atos(1)* documents for ``-l``."""
    request = parse_arguments(["-o", "App", *words, "1000"])

    assert (mode, base) == (request.mode, request.base)
    assert request.files == ("App",)
    assert request.addresses == ("1000",)


def test_long_names_take_one_dash_or_two():
    """Existing scripts use both forms."""
    for dash in ("-", "--"):
        request = parse_arguments(
            ["-o", "App", f"{dash}inlineFrames", f"{dash}fullPath", f"{dash}delimiter", "; "]
        )
        assert request.inline
        assert request.full_path
        assert request.delimiter == "; "
    request = parse_arguments(
        ["-arch", "arm64", "-o", "App", "-i", "-d", "|", "-f", "x", "--", "-1"]
    )
    assert (
        request.arch, request.inline, request.delimiter, request.input_file, request.addresses,
    ) == ("arm64", True, "|", "x", ("-1",))  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["0x1000"],
        ["-o"],
        ["-o", "App", "-l"],
        ["-o", "App", "-l", "zz"],
        ["-o", "App", "-l", "1", "-s", "2"],
        ["-o", "App", "-offset", "-l", "1"],
        ["-o", "App", "-nonsense"],
        ["-o", "App", "-l", "1" + "0" * 16],
    ],
)
def test_what_makes_no_sense_is_refused(words):
    with pytest.raises(AtosUsageError):
        parse_arguments(words)


@pytest.mark.parametrize("text", ["", "0x", "xyz", "-1", "0x1g", "1_0", "+1", " 1", "١", "f" * 17])
def test_what_is_no_address(text):
    """Python's own parser of numbers would accept some of these."""
    assert parse_address(text) is None
