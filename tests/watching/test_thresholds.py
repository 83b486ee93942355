"""The notation of thresholds of processor time and memory."""

import pytest

from machtrace.errors import ArgumentError
from machtrace.watching.thresholds import (
    DEFAULT_CPU,
    DEFAULT_MEMORY,
    CpuThreshold,
    MemoryJump,
    MemoryLevel,
    MemoryShare,
    MemorySlope,
    WatchOptions,
    parse_cpu,
    parse_memory,
)

SECOND = 1_000_000_000
MIB = 1 << 20


def test_a_share_of_a_processor_over_a_time():
    assert parse_cpu("80%/60s", processors=2) == (CpuThreshold(0.8, 60 * SECOND),)
    assert parse_cpu(" 12.5 % / 500ms ", processors=1) == (CpuThreshold(0.125, SECOND // 2),)


def test_several_thresholds_are_listed_with_commas_and_equal_ones_count_once():
    parsed = parse_cpu("50%/180s,90%/5s,50%/3m", processors=2)
    assert [str(threshold) for threshold in parsed] == ["50%/180s", "90%/5s"]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("1GiB", MemoryLevel(1 << 30)),
        ("512M", MemoryLevel(512 * MIB)),
        ("90%", MemoryShare(0.9)),
        ("+100MiB/1s", MemoryJump(100 * MIB, SECOND)),
        ("limit/5m", MemorySlope(300 * SECOND)),
    ],
)
def test_kinds_of_memory_thresholds(text, parsed):
    assert parse_memory(text) == (parsed,)


@pytest.mark.parametrize("text", ["80%/60s", "150%/200ms", "1GiB", "90%", "+100MiB/1s", "limit/5s"])
def test_thresholds_are_printed_as_they_are_written(text):
    parse = parse_memory if not text.endswith("0s") and "%/" not in text else None
    parsed = parse(text) if parse else parse_cpu(text, processors=4)
    assert [str(threshold) for threshold in parsed] == [text]


def test_the_defaults_are_valid_on_one_processor():
    assert len(parse_cpu(DEFAULT_CPU, processors=1)) == 3
    assert len(parse_memory(DEFAULT_MEMORY)) == 3


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("0%/60s", "always or never exceeded on 2 processors"),
        ("900%/5s", "always or never exceeded on 2 processors"),
        ("900%/0s", "shorter than two polls"),
        ("80%/100ms", "shorter than two polls"),
        ("80%/2d", "longer than a day"),
        ("-5%/60s", "not a threshold of processor time"),
        ("80%", "not a threshold of processor time"),
        ("80/60s", "not a threshold of processor time"),
        ("80%/", "no valid time"),
        ("80%/60x", "no valid time"),
        ("80%/60s,", "empty threshold"),
        ("", "empty threshold"),
        ("nan%/5s", "not a threshold of processor time"),
    ],
)
def test_senseless_processor_thresholds_are_one_clear_error(text, fact):
    with pytest.raises(ArgumentError, match=fact) as raised:
        parse_cpu(text, processors=2)
    assert raised.value.remedy.startswith(("write", "pass"))


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("0", "always exceeded"),
        ("0%", "always or never exceeded"),
        ("100%", "always or never exceeded"),
        ("-1GiB", "not a threshold of memory"),
        ("+100MiB", "not a threshold of memory"),
        ("100MiB/1s", "not a threshold of memory"),
        ("+100MiB/0s", "shorter than two polls"),
        ("+0MiB/1s", "too small a jump"),
        ("limit/", "no valid time"),
        ("much", "not a threshold of memory"),
        (",", "empty threshold"),
    ],
)
def test_senseless_memory_thresholds_are_one_clear_error(text, fact):
    with pytest.raises(ArgumentError, match=fact) as raised:
        parse_memory(text)
    assert raised.value.remedy.startswith(("write", "pass"))


@pytest.mark.parametrize(("hang_ms", "poll_ms"), [(100, 20), (239, 20), (240, 40), (None, 20)])
def test_idle_threads_are_polled_less_often_where_hangs_are_long(
    hang_ms: int | None, poll_ms: int
) -> None:
    options = WatchOptions(hang_ns=None if hang_ms is None else hang_ms * 1_000_000)
    assert options.idle_poll_ns == poll_ms * 1_000_000
