"""Personal data is on no disk: it is overwritten before reports are stored, in every format."""

from __future__ import annotations

import gzip
import json
import zipfile
from io import BytesIO

import pytest

from machtrace.errors import ArgumentError, FormatError
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.warehouse.ingest import Body
from machtrace.warehouse.scrubbing.rules import (
    DEFAULT_RULES,
    RULES,
    parse_rules,
    write_default_rules,
)
from machtrace.warehouse.scrubbing.scrubber import Scrubber, ScrubError, open_scrubber
from machtrace.warehouse.warehouse import Warehouse
from tests.support.command_line import run_command
from tests.support.reports.samples import CRASH, REPORT_SAMPLES
from tests.warehouse.test_deletion import report, stored_bytes

KEY = bytes(32)


def scrubber(text: str = DEFAULT_RULES) -> Scrubber:
    return Scrubber(parse_rules(text.encode(), "rules"), KEY)


def scrubbed(data: bytes, text: str = DEFAULT_RULES) -> bytes:
    made = scrubber(text).scrub(Body("name", data)).data
    assert len(made) == len(data)
    return made


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/Users/alice/Desktop", "/Users/xxxxx/Desktop"),
        (r"\/Users\/alice\/Desktop", r"\/Users\/xxxxx\/Desktop"),
        (r"C:\Users\Bob2\app.exe", r"C:\Users\xxx0\app.exe"),
        (r"C:\\Users\\Bob2\\app.exe", r"C:\\Users\\xxx0\\app.exe"),
        ("/home/bob", "/home/xxx"),
        ("/Users/Jürgen/x", "/Users/xxxxxxx/x"),
        ("/Users/Shared/x", "/Users/Shared/x"),
        ("/Applications/Users.app", "/Applications/Users.app"),
        (
            "/var/mobile/Containers/Data/Application/82D13D98-219E-3040-B62A-07A297007A7C/tmp",
            "/var/mobile/Containers/Data/Application/00x00x00-000x-0000-x00x-00x000000x0x/tmp",
        ),
        ("mail jane.doe+x@mail.example.org now", "mail xxxx.xxx+x@xxxx.xxxxxxx.xxx now"),
        ("memcpy@@GLIBC_2.14 -[A b@c] foo@4", "memcpy@@GLIBC_2.14 -[A b@c] foo@4"),
        ("from 192.168.10.7:80", "from 000.000.00.0:80"),
        ("[2001:db8:0:0:0:0:0:1]", "[0000:xx0:0:0:0:0:0:0]"),
        ("at fe80::1c:2 or FE80::1", "at xx00::0x:0 or xx00::0"),
        ("127.0.0.1 0.0.0.0", "127.0.0.1 0.0.0.0"),
        ('"CFBundleVersion":"1.2.3.4"', '"CFBundleVersion":"1.2.3.4"'),
        ("Version: 1.2.3.4 (5)", "Version: 1.2.3.4 (5)"),
        ("libA.dylib (1.2.3.4) v1.2.3.4 999.1.1.1 1.2.3.4.5", None),
        ("std::vector<a::b>::c dead:beef", None),
    ],
)
def test_masks(before, after):
    made = scrubbed(before.encode()).decode()
    assert made == (before if after is None else after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"deviceName": "Ann\'s \\"phone\\" 5"}', '{"deviceName": "xxxxxxxxxxxxxxxx0"}'),
        ('{"deviceName" : 125, "x": 1}', '{"deviceName" :   0, "x": 1}'),
        ('{"deviceName": {"a": [1]}, "x": 1}', '{"deviceName": {        }, "x": 1}'),
        ('{"deviceName": null}', '{"deviceName": null}'),
        ('{"user": {"email": "me", "id2": "me"}}', '{"user": {"email": "xx", "id2": "me"}}'),
        ('{"email": "me", "user": {}}', '{"email": "me", "user": {}}'),
        ('{"text": "\\"deviceName\\": 5"}', '{"text": "\\"deviceName\\": 5"}'),
        ("Hostname:  ann-mac\r\nProcess: a", "Hostname:  xxxxxxx\r\nProcess: a"),
        ('{"deviceName": "Ann', '{"deviceName": xxxx'),
    ],
)
def test_fields(before, after):
    made = scrubbed(before.encode()).decode()
    assert made == after
    if before.endswith("}"):
        assert json.loads(made).keys() == json.loads(before).keys()


def test_a_deep_value_is_overwritten_all_the_same():
    deep = b'{"deviceName": ' + b"[" * 100_000 + b'"ann"'
    assert b"ann" not in scrubbed(deep)


def test_hashes_have_the_form_of_the_value_and_depend_on_the_key():
    value = b"A5d3b725-78c3-3e19-a765-cceb22355093"
    made = scrubber().hashed(value)
    assert made != value
    assert [byte == ord("-") for byte in made] == [byte == ord("-") for byte in value]
    assert made[:1].upper() == made[:1]
    assert made == scrubber().hashed(value)
    assert made != Scrubber(parse_rules(DEFAULT_RULES.encode(), ""), b"1" * 32).hashed(value)
    assert made not in scrubbed(b'{"crashReporterKey": "other"}')
    assert made in scrubbed(b'{"crashReporterKey": "' + value + b'"}')
    assert made in scrubbed(b"CrashReporter Key:   " + value + b"\n")


@pytest.mark.parametrize("pattern", ["(a+)+$x", "(a|a)*b", "(.*)*x"])
def test_no_pattern_takes_longer_than_the_text_is_long(pattern):
    pytest.importorskip("re2")
    text = f"version = 1\npatterns = ['{pattern}', 'b']\n"
    assert scrubbed(b"a" * 100_000 + b"c b", text)[-3:] == b"c x"


def test_no_address_takes_longer_than_the_text_is_long():
    data = b"fe80:: " + b"fe80:" + b"f" * 29 + b" fe80:1:2:" + b"f" * 30 + b" "
    assert scrubbed(data * 50_000)[-len(data) :] == b"fe80:: " + data[7:]


@pytest.mark.parametrize(
    "data",
    [b"a" * 100, b'{"deviceName": 1}', b"a@b.example", b'{"user": {"email": ', b"1.2.3.4"],
)
def test_a_body_that_takes_too_long_is_not_stored(tmp_path, monkeypatch, data):
    pytest.importorskip("re2")
    folder = tmp_path / "w"
    with Warehouse.create(folder) as warehouse:
        (folder / RULES).write_text(DEFAULT_RULES.replace("patterns = []", "patterns = ['a.*b|a']"))
        with monkeypatch.context() as patch:
            patch.setattr("machtrace.warehouse.scrubbing.scrubber._SECONDS", -1.0)
            patch.setattr("machtrace.warehouse.scrubbing.scrubber._SECONDS_A_BYTE", 0.0)
            with pytest.raises(ScrubError):
                warehouse.receive([("x", b"none"), ("y", data)])
            refusal, names = warehouse.receive_each([[Body("y", data)], [Body("x", b"none")]])
        assert isinstance(refusal, ScrubError)
        assert names == ["00000001-0"]
        assert data not in stored_bytes(warehouse)


def devices(warehouse) -> list[str]:
    rows = warehouse.query("SELECT device FROM reports ORDER BY incident")
    return rows["device"].to_pylist()


def test_devices_of_short_identifiers_are_as_many_as_they_are(tmp_path):
    with Warehouse.create(tmp_path / "w") as warehouse:
        write_default_rules(warehouse.folder)
        names = [f"d{number}" for number in range(100, 400)]
        warehouse.receive([(name, report(f"i{name}", name)) for name in names])
        warehouse.flush()
        assert len(set(devices(warehouse))) == len(names)
        assert all(len(device) == 32 for device in devices(warehouse))
        warehouse.receive([("again", report("i-again", "d123"))])
        for name in ("d123", "d1", "123", devices(warehouse)[0]):
            warehouse.delete_device(name)
        left = warehouse.query("SELECT incident FROM reports")["incident"].to_pylist()
        assert set(left) == {f"i{name}" for name in names[1:] if name != "d123"}
        data = stored_bytes(warehouse)
        assert all(f'"i{name}"'.encode() in data for name in names[1:] if name != "d123")
        assert b'"id123"' not in data
        assert b'"i-again"' not in data


def test_devices_of_one_archive_stay_apart(tmp_path):
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(10, 100):
            archive.writestr(f"{number}.ips", report(f"i{number}", str(number)))
    with Warehouse.create(tmp_path / "w") as warehouse:
        write_default_rules(warehouse.folder)
        warehouse.receive([("all.zip", file.getvalue())])
        warehouse.flush()
        assert len(set(devices(warehouse))) == 90
        assert warehouse.delete_device("17") == (1, 1)
        assert len(set(devices(warehouse))) == 89


def event(number: int, user: object) -> bytes:
    """Return an event of Sentry's clients."""
    frame = {"function": "f", "instruction_addr": hex(number + 1)}
    body = {
        "event_id": f"{number:032x}",
        "platform": "native",
        "user": {"id": user},
        "exception": {"values": [{"type": "E", "stacktrace": {"frames": [frame]}}]},
    }
    return json.dumps(body).encode()


def test_users_of_sentry_are_as_many_as_they_are(tmp_path):
    users = ["d7", *range(10, 60), "ann@example.org", "bob@example.org", "10.0.0.1", "a/b", 'a"b']
    with Warehouse.create(tmp_path / "w") as warehouse:
        write_default_rules(warehouse.folder)
        bodies = [(str(at), event(at, user)) for at, user in enumerate(users)]
        bodies += [("null", event(900, None)), ("object", event(901, {"a": [1]}))]
        warehouse.receive(bodies)
        assert warehouse.flush() == (len(users) + 2, 0, 0)
        known = [device for device in devices(warehouse) if device]
        assert len(known) == len(set(known)) == len(users)
        for user in ("d7", "12", "ann@example.org", 'a"b'):
            assert warehouse.delete_device(user) == (1, 1)
        assert b"example" not in stored_bytes(warehouse)
    with Warehouse.create(tmp_path / "plain") as warehouse:
        warehouse.receive([("1", event(1, "d1")), ("2", event(2, "d2"))])
        assert warehouse.delete_device("d1") == (1, 1)


def test_equal_bodies_of_devices_are_reports_of_each(tmp_path, monkeypatch):
    monkeypatch.setattr(Scrubber, "hashed", lambda _, value, *_rest: b"a" * len(value))
    with Warehouse.create(tmp_path / "w") as warehouse:
        write_default_rules(warehouse.folder)
        bodies = [report("", device) for device in ("d1", "d2")]
        warehouse.receive([("x", body) for body in bodies])
        assert warehouse.flush().reports == 2


def test_more_devices_than_pseudonyms_are_unknown(tmp_path):
    every = "abcdefghijklmnopqrstuvwxyz"
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in every:
            archive.writestr(f"{name}.ips", report(f"i{name}", name))
    with Warehouse.create(tmp_path / "w") as warehouse:
        write_default_rules(warehouse.folder)
        warehouse.receive([("all.zip", file.getvalue())])
        assert warehouse.flush().reports == len(every)
        known = [device for device in devices(warehouse) if device]
        assert len(known) == len(set(known))


def with_short_hashes(folder) -> tuple[str, str]:
    """Make a warehouse as earlier versions did, and return two devices of one hash."""
    with Warehouse.create(folder) as warehouse:
        write_default_rules(folder)
        hasher = open_scrubber(folder)
        (folder / RULES).unlink()  # so that hashes are stored as they are
        by_hash: dict[bytes, str] = {}
        for number in range(1000):
            name = f"d{number:03}"
            made = hasher.hashed(name.encode())
            if made in by_hash:
                break
            by_hash[made] = name
        pair = by_hash[made], name
        for device in pair:
            warehouse.receive([(device, report(f"i-{device}", made.decode()))])
        warehouse.flush()
        warehouse.receive([("again", report(f"i-{name}", made.decode()))])
        warehouse.receive([("bad", b'{"crashReporterKey": "' + made + b'", broken')])
        warehouse.flush()
        write_default_rules(folder)
    return pair


def test_a_hash_that_two_devices_have_deletes_nothing(tmp_path):
    folder = tmp_path / "w"
    first, other = with_short_hashes(folder)
    with Warehouse(folder) as warehouse:
        (short,) = set(devices(warehouse))
        assert len(short) == 4
        warehouse.receive([("new", report("i-new", first)), ("x", report("i-x", other))])
        warehouse.flush()
        before = stored_bytes(warehouse)
        for name in (first, other, short):
            with pytest.raises(ArgumentError, match=r"4 reports may be of .* another device"):
                warehouse.delete_device(name)
        assert stored_bytes(warehouse) == before
        assert len(devices(warehouse)) == 4
        new = warehouse.query("SELECT device FROM reports WHERE incident = 'i-new'")
        assert warehouse.delete_device(new["device"][0].as_py()) == (1, 1)
    assert run_command("warehouse", "delete", folder, "--device", first).returncode == 1
    result = run_command("warehouse", "delete", folder, "--device", first, "--uncertain")
    assert "2 reports deleted, and the bytes of 4 records" in result.stdout
    with Warehouse(folder) as warehouse:
        assert b"i-x" in stored_bytes(warehouse)
        assert len(devices(warehouse)) == 1


def test_own_rules():
    pytest.importorskip("re2")
    text = """version = 1
remove = ["customer"]
patterns = ["order-([0-9]+)", "secret"]
"""
    made = scrubbed(b'{"customer": "Ann", "deviceName": "x"} order-123 secret /Users/ann', text)
    assert made == b'{"customer": "xxx", "deviceName": "x"} order-000 xxxxxx /Users/ann'


def test_what_overlaps_is_overwritten_as_a_whole():
    pytest.importorskip("re2")
    text = 'version = 1\npatterns = ["abc", "bcde"]\n'
    assert scrubbed(b"-abcde-", text) == b"-xxxxx-"


@pytest.mark.parametrize("name", REPORT_SAMPLES)
def test_reports_of_every_format_stay_readable(name):
    data = REPORT_SAMPLES[name]
    made = scrubber().scrub(Body(name, data)).data
    before, after = (read_source(ReportSource(name, each)).reports for each in (data, made))
    assert len(after) == len(before)
    for old, new in zip(before, after, strict=True):
        assert [len(thread.frames) for thread in new.threads] == [
            len(thread.frames) for thread in old.threads
        ]
        assert [image.uuid for image in new.images] == [image.uuid for image in old.images]


def test_spools_have_right_checksums():
    pytest.importorskip("re2")
    spool = REPORT_SAMPLES["spool"]
    paths = {image.path for image in read_source(ReportSource("", spool)).reports[0].images}
    word = max((each for path in paths for each in path.split("/") if each), key=len)
    made = scrubbed(spool, f'version = 1\npatterns = ["{word}"]\n')
    assert word.encode() not in made
    after = read_source(ReportSource("", made)).reports[0]
    assert len(after.images) == len(paths)
    assert not any(word in image.path for image in after.images)


def test_archives_are_packed_again():
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("/Users/ann/a.crash", CRASH + b"/Users/ann/")
        archive.writestr("b.crash.gz", gzip.compress(b"/Users/ann/"))
    made = scrubber().scrub(Body("x.zip", file.getvalue()))
    with zipfile.ZipFile(BytesIO(made.data)) as archive:
        every = {name: archive.read(name) for name in archive.namelist()}
    assert len(every) == 2
    assert not any(b"ann" in data or "ann" in name for name, data in every.items())
    untouched = gzip.compress(b"nothing")
    assert scrubber().scrub(Body("", untouched)).data == untouched


def test_texts_in_utf_16():
    text = CRASH.decode() + "/Users/Ann/x"
    made = scrubber().scrub(Body("", text.encode("utf-16"))).data
    assert b"Ann" not in made
    assert b"/Users/xxx/x" in made


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version = 2",
        'version = 1\nmask = ["all"]',
        'version = 1\nhash = "x"',
        'version = 1\nremove = [""]',
        "version = 1\nother = []",
        'version = 1\npatterns = ["("]',
        "version = 1\npatterns = ['(?=a)']",
        "version = 1\npatterns = ['(a)\\1']",
        "version = 1\npatterns = ['(.{0,900}){1}(.{0,900}){1}']",
        "version = ",
        "\x00",
    ],
)
def test_rules_that_are_none(text):
    if "patterns" in text:
        pytest.importorskip("re2")
    with pytest.raises(FormatError):
        parse_rules(text.encode(), "rules")


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["a", ""], "number 2 of 'patterns' is empty"),
        (["a", "b("], r"pattern 2, 'b\(', is invalid in RE2: missing \)"),
        (["|".join(f"word{n:04}" for n in range(5000))], "pattern 1, 'word0000.*…, is"),
        (["(" + "a" * 50_000], "pattern 1, '.aaa.*…, is invalid"),
        (["(?P<" + "é" * 50_000], "pattern 1, .*…, is invalid in RE2: .*…"),
    ],
)
def test_a_message_about_patterns_is_short(patterns, message):
    pytest.importorskip("re2")
    with pytest.raises(FormatError, match=message) as caught:
        scrubber(f"version = 1\npatterns = {json.dumps(patterns)}")
    assert len(str(caught.value)) < 300


def test_devices_are_trimmed_alike_when_stored_and_deleted(tmp_path):
    whole = "0123456789abcdef" * 2 + "xyz"
    for name, has_rules in (("scrubbed", True), ("plain", False)):
        with Warehouse.create(tmp_path / name) as warehouse:
            if has_rules:
                write_default_rules(warehouse.folder)
            stated = ["d1", "d1 ", " d1\t", "d2", whole, f" {whole}"]
            bodies = [report(f"i{at}", device) for at, device in enumerate(stated)]
            bodies += [event(at, device) for at, device in enumerate(("u1", "u1 ", "u2"))]
            bodies.append(b'{"crashReporterKey": "d1 ", broken')
            warehouse.receive([(str(at), body) for at, body in enumerate(bodies)])
            warehouse.flush()
            assert len(set(devices(warehouse))) == 5
            assert warehouse.delete_device("d1 ") == (3, 4)
            assert warehouse.delete_device(f"{whole}\n") == (2, 2)
            assert warehouse.delete_device(" u1") == (2, 2)
            with pytest.raises(ArgumentError, match="empty"):
                warehouse.delete_device(" ")


def test_what_takes_too_long_names_the_rule_with_most_time(monkeypatch):
    pytest.importorskip("re2")
    clock = iter(range(1000))
    monkeypatch.setattr("time.thread_time", lambda: float(next(clock)))
    text = "version = 1\nremove = ['name']\npatterns = ['never', 'a']"
    with pytest.raises(ScrubError, match="pattern 2 searches") as caught:
        scrubber(text).scrub(Body("x", b"a" * 1000))
    assert caught.value.rule == "pattern 2"


def test_nothing_personal_is_on_the_disk(tmp_path):
    folder = tmp_path / "w"
    with Warehouse.create(folder) as warehouse:
        write_default_rules(folder)
        device = "a5d3b72578c33e19"
        body = report("i1", device).replace(b'"App"', b'"/Users/alice/App"')
        warehouse.receive([("/Users/alice/1", body), ("2", report("i2", "other"))])
        warehouse.flush()
        every = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
        assert b"alice" not in every
        assert device.encode() not in every
        devices = warehouse.query("SELECT device FROM reports")["device"].to_pylist()
        assert len(set(devices)) == 2
        assert (folder / "scrub.key").stat().st_mode & 0o077 == 0
        assert warehouse.delete_device(device) == (1, 1)
    with Warehouse(folder) as warehouse:
        warehouse.receive([("3", report("i3", "other"))])
        warehouse.flush()
        assert len(set(warehouse.query("SELECT device FROM reports")["device"].to_pylist())) == 1


def test_without_rules_bytes_are_stored_as_they_come(tmp_path):
    with Warehouse.create(tmp_path / "w") as warehouse:
        warehouse.receive([("1", b"/Users/alice")])
        assert b"/Users/alice" in stored_bytes(warehouse)


def test_invalid_rules_refuse_reports(tmp_path):
    with Warehouse.create(tmp_path / "w") as warehouse:
        (warehouse.folder / RULES).write_text("mask")
        with pytest.raises(FormatError, match=RULES):
            warehouse.receive([("1", b"/Users/alice")])
        assert stored_bytes(warehouse) == b""


def test_the_command_shows_what_would_go(tmp_path):
    folder, file = tmp_path / "w", tmp_path / "a.txt"
    file.write_bytes(b"/Users/alice/x\nHostname: mac\n")
    assert run_command("warehouse", "init", folder).returncode == 0
    result = run_command("warehouse", "scrub", folder, "--try", file)
    assert "2 values would be overwritten" in result.stdout
    assert "alice" in result.stdout
    result = run_command("warehouse", "scrub", folder, "--try", file, "--format", "json")
    assert json.loads(result.stdout)["edits"][0] == {
        "file": str(file),
        "rule": "user-folders",
        "offset": 7,
        "before": "alice",
        "after": "xxxxx",
    }
    assert run_command("warehouse", "scrub", folder).stdout == DEFAULT_RULES
    plain = tmp_path / "plain"
    assert run_command("warehouse", "init", plain, "--no-scrub").returncode == 0
    assert "as they come" in run_command("warehouse", "scrub", plain, "--try", file).stdout
    assert run_command("warehouse", "scrub", plain, "--defaults").stdout == DEFAULT_RULES
