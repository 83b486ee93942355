"""debugserver's profiles: whole, cut anywhere, and damaged."""

import random

import pytest

from machtrace.errors import RemoteProtocolError
from machtrace.targets.gdbremote.watched import (
    ProfileStream,
    parse_profile,
    profile_request,
)
from tests.support.stand_ins.running_stub import profile

TEXT = profile(
    {0x3C1E: (323080, ""), 0x3CEB: (1753, "com.apple.uikit.eventfetch-thread")},
    ended_us=500,
    footprint=50_000_000,
    limit_mib=2048,
)


def test_a_profile_has_the_times_of_threads_and_the_memory_of_the_process():
    parsed = parse_profile(TEXT)
    used = {number: thread.used_us for number, thread in parsed.threads.items()}
    assert used == {0x3C1E: 323080, 0x3CEB: 1753}
    assert parsed.threads[0x3C1E].name is None
    assert parsed.threads[0x3CEB].name == "com.apple.uikit.eventfetch-thread"
    assert parsed.used_us == 323080 + 1753 + 500  # the task's own time is that of ended threads
    assert (parsed.footprint, parsed.limit) == (50_000_000, 2048 << 20)


@pytest.mark.parametrize("limit", [0, (1 << 64) - 1], ids=["none", "minus one"])
def test_an_app_without_a_limit_has_none(limit):
    assert parse_profile(profile({}, limit_mib=limit)).limit is None


def test_a_profile_may_be_cut_at_any_byte():
    for at in range(1, len(TEXT)):
        stream = ProfileStream()
        assert stream.feed(b"A" + TEXT[:at]) is None
        assert stream.feed(b"A" + TEXT[at:]) == parse_profile(TEXT)


def test_a_profile_follows_another():
    stream = ProfileStream()
    assert stream.feed(b"A" + TEXT) == stream.feed(b"A" + TEXT) == parse_profile(TEXT)


def test_unknown_names_are_skipped():
    assert parse_profile(b"energy:5;cpu_cap_p:80;news:x;" + TEXT) == parse_profile(TEXT)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"task_used_usec:1;",
        b"task_used_usec:-1;--end--;",
        b"thread_used_id:xyz;--end--;",
        b"thread_used_id:1;thread_used_usec:;--end--;",
        b"phys_footprint:1e9;--end--;",
        b"nonsense;--end--;",
        b"task_used_usec:" + b"9" * 30 + b";--end--;",
    ],
)
def test_a_damaged_profile_is_an_error(text):
    with pytest.raises(RemoteProtocolError):
        parse_profile(text)


def test_a_profile_without_an_end_is_an_error_and_the_next_is_read():
    stream = ProfileStream()
    with pytest.raises(RemoteProtocolError, match="does not end"):
        stream.feed(b"A" + b"news:" + b"x" * (1 << 20))
    assert stream.feed(b"A" + TEXT) == parse_profile(TEXT)


def test_random_bytes_are_a_profile_or_an_error():
    chance = random.Random(14)  # noqa: S311
    for _ in range(3000):
        data = bytearray(TEXT)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            parse_profile(bytes(data))
        except RemoteProtocolError:
            continue


def test_the_request_states_what_is_profiled():
    assert profile_request(500_000) == (
        b"QSetEnableAsyncProfiling;enable:1;interval_usec:500000;scan_type:0x814e;"
    )
