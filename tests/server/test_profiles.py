"""Profiles of other systems' agents: Pyroscope's pushes, OpenTelemetry's requests."""

from __future__ import annotations

import gzip
import json
import time
from base64 import b64encode

import pytest

from machtrace.render.pprof import Message
from machtrace.server.tokens import Scope, Tokens
from tests.server.serving import PATIENCE, running
from tests.support.reports.samples import APP_BASE, OTLP, OTLP_BUILD_ID, PPROF, REPORT_SAMPLES

PUSH = "/push.v1.PusherService/Push"
OTLP_PATH = "/v1development/profiles"
BUILD_ID = "89ab" * 10


def wait(client, number=1):
    """Return the rows of reports when there are some."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        rows = client.rows("SELECT app, build, device, time, format FROM reports ORDER BY time")
        if len(rows) >= number:
            return rows
        time.sleep(0.02)
    raise AssertionError("they were never read")


def folded(client):
    """Return the stacks, outermost first, by their weights."""
    path = "/v1/flame?format=folded&where=role%3D%27sample%27"
    lines = client.get(path).data.decode().splitlines()
    return {stack: int(count) for stack, _, count in (line.rpartition(" ") for line in lines)}


def pprof(start=0x401000, before=0x1000, address=0x4011A0, build_id=BUILD_ID) -> bytes:
    """Return a profile of one stack without names, in an ELF image."""
    written = Message()
    written.message(1, Message((1, 1), (2, 2)))
    sample = Message()
    sample.numbers(1, (1,))
    sample.numbers(2, (3,))
    written.message(2, sample)
    mapping = ((1, 1), (2, start), (3, start + 0x8000), (4, before), (5, 3), (6, 4))
    written.message(3, Message(*mapping))
    written.message(4, Message((1, 1), (2, 1), (3, address)))
    for text in ("", "samples", "count", "/usr/bin/app", build_id):
        written.text(6, text)
    return bytes(written)


@pytest.mark.parametrize(
    ("form", "body"),
    [
        ("folded", b"main;work 3\nmain 2\nmain;work 1"),
        ("", b"main;work 4\n\n  main\t2\r\n"),
        ("lines", b"main;work\nmain\nmain;work\nmain;work\nmain;work\nmain\n"),
    ],
)
def test_lines_of_stacks(client, form, body):
    path = f"/ingest?name=my.app{{version=7,instance=a1}}&format={form}&from=1700000000&spyName=x"
    answer = client.post(path.replace("{", "%7B").replace("}", "%7D"), body)
    assert (answer.status, answer.data) == (200, b"")
    assert wait(client) == [
        {
            "app": "my.app",
            "build": "7",
            "device": "a1",
            "time": 1_700_000_000_000_000_000,
            "format": "folded",
        }
    ]
    assert folded(client) == {"main;work": 4, "main": 2}


def test_equal_profiles_of_two_moments_are_two(client):
    """A request that is sent again is one."""
    for start in (1700000000, 1700000010, 1700000010):
        assert client.post(f"/ingest?name=a&from={start}", b"main;work 3\n").status == 200
    wait(client, 2)
    client.state("00000001-0")
    assert folded(client) == {"main;work": 6}


def test_a_pprof_profile_is_offsets_in_images(client):
    """The mapping begins behind the file's beginning."""
    assert client.post("/ingest?name=shop&format=pprof", gzip.compress(pprof())).status == 200
    (row,) = wait(client)
    assert (row["app"], row["format"]) == ("shop", "pprof")
    (wanted,) = client.get("/v1/symbols/wanted").json["wanted"]
    assert (wanted["uuid"], wanted["name"]) == (BUILD_ID, "app")
    (frame,) = client.rows('SELECT "offset" FROM frames')
    assert frame == {"offset": 0x11A0}


def test_a_pprof_profile_with_names_alone(client):
    """As an interpreter has them: all addresses are 0."""
    written = Message()
    written.message(1, Message((1, 1), (2, 2)))
    sample = Message()
    sample.numbers(1, (2, 1))
    sample.numbers(2, (3,))
    written.message(2, sample)
    written.message(3, Message((1, 1), (5, 5)))
    for number in (1, 2):
        location = Message((1, number), (2, 1))
        location.message(4, Message((1, number), (2, 9)))
        written.message(4, location)
        written.message(5, Message((1, number), (2, 2 + number)))
    for text in ("", "samples", "count", "main", "work", "python3"):
        written.text(6, text)
    client.post("/ingest?name=shop&format=pprof", bytes(written))
    wait(client)
    assert folded(client) == {"main;work": 3}


def test_a_form(client):
    head = b'--b\r\nContent-Disposition: form-data; name="%s"; filename="x"\r\n\r\n'
    parts = (head % b"profile", pprof(), b"\r\n", head % b"sample_type_config", b"{}\r\n--b--\r\n")
    kind = "multipart/form-data; boundary=b"
    assert client.post("/ingest?name=shop", b"".join(parts), Content_Type=kind).status == 200
    assert wait(client)[0]["app"] == "shop"


LABELS = [("__name__", "process_cpu"), ("service_name", "shop"), ("hostname", "h7")]


def as_json():
    labels = [{"name": name, "value": value} for name, value in LABELS]
    samples = [{"ID": "x", "rawProfile": b64encode(PPROF).decode()}]
    samples += [{"rawProfile": b64encode(gzip.compress(pprof())).decode()}]
    return json.dumps({"series": [{"labels": labels, "samples": samples}]}).encode()


def as_message():
    series, request = Message(), Message()
    for name, value in LABELS:
        pair = Message()
        pair.text(1, name)
        pair.text(2, value)
        series.message(1, pair)
    for profile in (PPROF, gzip.compress(pprof())):
        sample = Message()
        sample.data(1, profile)
        series.message(2, sample)
    request.message(1, series)
    return bytes(request)


@pytest.mark.parametrize(
    ("kind", "body", "empty"),
    [("application/json", as_json(), b"{}"), ("application/proto", as_message(), b"")],
)
def test_pushes(client, kind, body, empty):
    packed = gzip.compress(body)
    answer = client.post(PUSH, packed, Content_Type=kind, Content_Encoding="gzip")
    assert (answer.status, answer.data) == (200, empty)
    rows = wait(client, 2)
    assert {(row["app"], row["device"]) for row in rows} == {("shop", "h7")}
    assert folded(client)["main;work"] == 7
    offsets = {row["offset"] for row in client.rows('SELECT "offset" FROM frames')}
    assert offsets == {0x1A0, 0x300, 0x11A0}
    assert APP_BASE not in offsets


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/ingest", b"a;b 1", 400),
        ("/ingest?name=a%7Bb", b"a;b 1", 400),
        ("/ingest?name=a%7Bb%7D", b"a;b 1", 400),
        ("/ingest?name=a", b"", 400),
        ("/ingest?name=a", b"\n \n", 400),
        ("/ingest?name=a", b"a;b", 400),
        ("/ingest?name=a", b"a;b -1", 400),
        ("/ingest?name=a", b"a;b " + b"9" * 16, 400),
        ("/ingest?name=a", b"\xff" * 100, 400),
        ("/ingest?name=a&format=jfr", b"x", 415),
        ("/ingest?name=a&format=tree", b"x", 415),
    ],
)
def test_profiles_that_are_refused(client, path, body, status):
    assert client.post(path, body).status == status


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b"", 400),
        ("application/json", b"[]", 400),
        ("application/json", b"[" * 100_000, 400),
        ("application/json", b'{"series": 1}', 400),
        ("application/json", b'{"series": [{"labels": [{}]}]}', 400),
        ("application/json", b'{"series": [{"samples": [{"rawProfile": "!"}]}]}', 400),
        ("application/json", b'{"series": [{"samples": [{"rawProfile": 1}]}]}', 400),
        ("application/json", b"{}", 200),
        ("application/proto", b"\xff", 400),
        ("application/proto", b"\x0a\x05", 400),
        ("application/proto", b"\x0a\x02\x12\x7f", 400),
        ("application/proto", b"\x0a\x00" * 1001, 400),
        ("application/proto", b"", 200),
        ("text/plain", b"", 415),
    ],
)
def test_pushes_that_are_refused(client, kind, body, status):
    assert client.post(PUSH, body, Content_Type=kind).status == status


def test_profiles_that_cannot_be_read_are_in_quarantine(client):
    assert client.post("/ingest?name=a&format=pprof", b"nothing of the kind").status == 200
    state = client.state("00000001-0")
    assert state["state"] == "quarantined"


def test_scopes(folder):
    made = {scope: Tokens(folder).create(scope) for scope in Scope}
    with running(folder, has_otlp=True) as client:
        for path in ("/ingest?name=a", PUSH, OTLP_PATH):
            refused = {scope: client.post(path, b"", token=made[scope]).status for scope in Scope}
            assert (refused[Scope.READ], refused[Scope.SYMBOLS]) == (403, 403)
            assert refused[Scope.INGEST] in (400, 415)
        assert client.post(f"/ingest?name=a&token={made[Scope.INGEST]}", b"a;b 1").status == 200


# --- OpenTelemetry ---


def exported(client, data, **headers):
    return client.post(OTLP_PATH, data, Content_Type="application/x-protobuf", **headers)


@pytest.fixture
def collecting(folder):
    with running(folder, has_otlp=True) as client:
        yield client


def test_open_telemetry_has_to_be_chosen(client):
    assert exported(client, OTLP).status == 404


def test_open_telemetry(collecting):
    answer = exported(collecting, gzip.compress(OTLP), Content_Encoding="gzip")
    assert (answer.status, answer.data) == (200, b"")
    assert answer.headers["Content-Type"] == "application/x-protobuf"
    (row,) = wait(collecting)
    assert row == {
        "app": "shop",
        "build": "",
        "device": "h1",
        "time": 1_700_000_000_000_000_000,
        "format": "otlp",
    }
    # A function of an interpreter has no address; the others have one in the image.
    rows = collecting.rows('SELECT "offset", text FROM frames ORDER BY "offset"')
    assert [(each["offset"], each["text"]) for each in rows] == [
        (0, "run"),
        (0x11A0, ""),
        (0x1300, ""),
    ]
    (wanted,) = collecting.get("/v1/symbols/wanted").json["wanted"]
    assert wanted["uuid"] == OTLP_BUILD_ID
    weights = collecting.rows(
        "SELECT weight, name FROM occurrences WHERE role = 'sample' ORDER BY weight"
    )
    assert weights == [{"weight": 2, "name": "worker"}, {"weight": 5, "name": ""}]


def request_of(*profiles, dictionary=True):
    scope, resource, request = Message(), Message(), Message()
    for profile in profiles:
        scope.message(2, profile)
    resource.message(2, scope)
    request.message(1, resource)
    if dictionary:
        strings = Message()
        strings.text(5, "")
        request.message(2, strings)
    return bytes(request)


def rejected(data):
    from machtrace.reports.plcrash.wire import Message as Read

    return Read(memoryview(data), "answer").message(1).integer(1)


def test_partial_success(collecting):
    profile = Message((4, 1))
    answer = exported(collecting, request_of(profile, Message(), Message()))
    assert (answer.status, rejected(answer.data)) == (200, 2)
    answer = exported(collecting, request_of(profile, dictionary=False))
    assert (answer.status, rejected(answer.data)) == (200, 1)
    assert exported(collecting, b"").data == b""


def test_open_telemetry_s_limits(folder):
    with running(folder, has_otlp=True, packed_bytes=10_000, parts=50) as client:
        large = Message((4, 1))
        large.data(10, b"x" * 20_000)
        assert exported(client, request_of(large)).status == 413
        packed = gzip.compress(request_of(large))
        assert exported(client, packed, Content_Encoding="gzip").status == 413
        assert exported(client, b"\x0a\x00" * 51).status == 400
        assert exported(client, b"\xff\xff").status == 400
        assert client.post(OTLP_PATH, b"{}", Content_Type="application/json").status == 415


@pytest.mark.parametrize("cut", range(0, len(OTLP), 7))
def test_requests_that_are_cut_are_values_or_refusals(cut):
    from machtrace.errors import FormatError
    from machtrace.reports.readers import read_source
    from machtrace.reports.source import ReportSource

    for data in (OTLP[:cut], OTLP[:cut] + b"\xff" + OTLP[cut + 1 :]):
        try:
            read_source(ReportSource("x", data))
        except FormatError:
            continue


def test_fields_are_limited(monkeypatch):
    """Each takes a hundred times its bytes of memory."""
    from machtrace.errors import FormatError
    from machtrace.reports.profiles import otlp
    from machtrace.reports.readers import read_source
    from machtrace.reports.source import ReportSource

    monkeypatch.setattr(otlp, "MAX_FIELDS", 20)
    with pytest.raises(FormatError, match="more than 20 fields"):
        read_source(ReportSource("x", OTLP))


@pytest.mark.peer
def test_messages_of_the_published_classes(collecting):
    """The package opentelemetry-proto writes them."""
    service = pytest.importorskip(
        "opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2"
    )
    from opentelemetry.proto.common.v1 import common_pb2 as common
    from opentelemetry.proto.profiles.v1development import profiles_pb2 as pb

    def text(value):
        return common.AnyValue(string_value=value)

    strings = ["", "cpu", "nanoseconds", "/lib/libx.so", "inner", "outer", "x.c"]
    strings += ["process.executable.build_id.gnu"]
    dictionary = pb.ProfilesDictionary(
        string_table=strings,
        mapping_table=[
            pb.Mapping(),
            pb.Mapping(memory_limit=0x9000, filename_strindex=3, attribute_indices=[1]),
        ],
        location_table=[
            pb.Location(),
            pb.Location(
                mapping_index=1,
                address=0x1230,
                lines=[pb.Line(function_index=1, line=3), pb.Line(function_index=2, line=9)],
            ),
        ],
        function_table=[
            pb.Function(),
            pb.Function(name_strindex=4, filename_strindex=6),
            pb.Function(name_strindex=5, filename_strindex=6),
        ],
        attribute_table=[
            pb.KeyValueAndUnit(),
            pb.KeyValueAndUnit(key_strindex=7, value=text(BUILD_ID)),
        ],
        stack_table=[pb.Stack(), pb.Stack(location_indices=[1])],
    )
    profile = pb.Profile(
        sample_type=pb.ValueType(type_strindex=1, unit_strindex=2),
        period_type=pb.ValueType(type_strindex=1, unit_strindex=2),
        period=10_000_000,
        time_unix_nano=1_700_000_000_000_000_000,
        samples=[pb.Sample(stack_index=1, values=[30_000_000])],
    )
    resource = pb.ResourceProfiles(scope_profiles=[pb.ScopeProfiles(profiles=[profile])])
    name = common.KeyValue(key="service.name", value=text("shop"))
    resource.resource.attributes.append(name)
    request = service.ExportProfilesServiceRequest(
        resource_profiles=[resource], dictionary=dictionary
    )
    answer = exported(collecting, request.SerializeToString())
    reply = service.ExportProfilesServiceResponse.FromString(answer.data)
    assert reply.partial_success.rejected_profiles == 0
    assert wait(collecting)[0]["app"] == "shop"
    assert folded(collecting) == {"outer;inner": 3}
    assert collecting.rows('SELECT "offset" FROM frames') == [{"offset": 0x1230}]
    request.resource_profiles[0].scope_profiles[0].profiles.append(pb.Profile())
    answer = exported(collecting, request.SerializeToString())
    reply = service.ExportProfilesServiceResponse.FromString(answer.data)
    assert reply.partial_success.rejected_profiles == 1
    assert reply.partial_success.error_message


def test_agents_spools(client):
    """The agent's own record, as it is and in an archive."""
    spool = REPORT_SAMPLES["spool"]
    answer = client.post("/v1/reports?name=watch.spool", gzip.compress(spool))
    assert answer.status == 202
    (record,) = answer.json["ids"]
    assert client.state(record)["state"] == "parsed"
    (row,) = client.rows("SELECT kind, format FROM reports")
    assert row == {"kind": "audit", "format": "spool"}
