"""The same rows from each engine, and from a folder on an object store."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from machtrace.engines import jobs
from machtrace.engines.jobs import Engine, Job, Request, digests, run
from machtrace.engines.wire import packed, unpacked
from machtrace.errors import ArgumentError, FileAccessError, MachtraceError
from machtrace.warehouse.warehouse import Warehouse
from tests.audit.observed.builds import BY_APP, BY_SDK, NEW, OLD, RULES, spool
from tests.support.command_line import run_command
from tests.support.reports.samples import REPORT_SAMPLES
from tests.warehouse.test_names import crash, program  # noqa: F401 - a fixture

JOBS = list(Job)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, program):  # noqa: F811
    """A warehouse of several segments with reports of all kinds, and spools of two devices."""
    folder = tmp_path_factory.mktemp("fleet")
    bodies = sorted(REPORT_SAMPLES.items())
    chains = [("_stop", "_outer", "_main"), ("_outer", "_main"), ("_main",)]
    crashes = [(f"{at}.ips", crash(program, f"c{at}", chains[at % 3])) for at in range(12)]
    with Warehouse.create(folder / "w") as warehouse:
        for part in (bodies[::2] + crashes[:5], bodies[1::2] + crashes[5:9], crashes[9:]):
            warehouse.receive(part)
            warehouse.flush()
        # These names are in one segment alone.
        warehouse.name([str(program.path)], segments=[1])
        weight = warehouse.query("SELECT sum(weight)::BIGINT AS w FROM occurrences")
        calls = warehouse.flame()
    (folder / "rules.toml").write_text(RULES)
    for device in ("one", "two"):
        (folder / "spools" / device).mkdir(parents=True)
        (folder / "spools" / device / "a.spool").write_bytes(spool(OLD, [BY_APP, BY_APP]))
    (folder / "spools" / "two" / "b.spool.1").write_bytes(spool(NEW, [BY_SDK, BY_APP], day=1))
    (folder / "spools" / "two" / "c.spool").write_bytes(b"no spool")
    return SimpleNamespace(
        folder=folder, program=program, weight=weight["w"][0].as_py(), flame=calls
    )


def request_of(fleet, job: Job, place: str | None = None) -> Request:
    folder = fleet.folder / ("spools" if job is Job.AUDIT else "w")
    rules = str(fleet.folder / "rules.toml")
    return Request(job, place or str(folder), (str(fleet.program.path),), rules)


@pytest.fixture(scope="module")
def expected(fleet):
    """By job: the digests of the rows that one process makes."""
    return {job: digests(run(request_of(fleet, job), Engine.LOCAL, 1)) for job in JOBS}


@pytest.fixture(scope="module")
def ray_cluster():
    """Four processors of Ray, for all tests of this file."""
    if find_spec("ray") is None or find_spec("pandas") is None:
        pytest.skip("ray is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray

        # A socket's path is short.
        with tempfile.TemporaryDirectory(prefix="r") as folder:
            ray.init(
                num_cpus=4,
                include_dashboard=False,
                object_store_memory=1 << 27,
                log_to_driver=False,
                _temp_dir=folder,
            )
            yield
            ray.shutdown()


pytestmark = pytest.mark.peer


@pytest.mark.parametrize("job", JOBS)
def test_two_processes_make_the_same_rows(fleet, expected, job):
    assert digests(run(request_of(fleet, job), Engine.PROCESSES, 2)) == expected[job]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("job", "workers"), [(Job.FLAME, 2), (Job.FLAME, 4), (Job.GROUPING, 2), (Job.NAMING, 4)]
)
@pytest.mark.usefixtures("ray_cluster")
def test_ray_makes_the_same_rows(fleet, expected, job, workers):
    assert digests(run(request_of(fleet, job), Engine.RAY, workers)) == expected[job]


@pytest.mark.parametrize("job", JOBS)
def test_dask_makes_the_same_rows(fleet, expected, job):
    if find_spec("dask") is None:
        pytest.skip("dask is not installed")
    assert digests(run(request_of(fleet, job), Engine.DASK, 2)) == expected[job]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("job", JOBS)
def test_spark_makes_the_same_rows(fleet, expected, job):
    if find_spec("pyspark") is None:
        pytest.skip("pyspark is not installed")
    if shutil.which("java") is None:
        pytest.skip("there is no Java runtime, in which Spark runs")
    assert digests(run(request_of(fleet, job), Engine.SPARK, 2)) == expected[job]


def test_rows_are_those_of_the_warehouse(fleet):
    """Its own queries have the same totals."""
    flame = run(request_of(fleet, Job.FLAME), Engine.LOCAL, 1)
    assert sum(flame["own"].to_pylist()) == fleet.weight
    own = fleet.flame
    names = Counter()
    for frame, weight in zip(own.tree.frame[1:].tolist(), own.own[1:].tolist(), strict=True):
        names[own.functions[frame]] += weight
    made = Counter()
    for row in flame.to_pylist():
        made[row["function"], row["image"]] += row["own"]
    assert made == names

    named = run(request_of(fleet, Job.NAMING), Engine.LOCAL, 1).to_pylist()
    ours = [row for row in named if row["uuid"] == fleet.program.uuid.hex]
    assert {row["function"] for row in ours} == {"stop", "outer", "main"}

    calls = run(request_of(fleet, Job.AUDIT), Engine.LOCAL, 1).to_pylist()
    counts = [(row["device"], row["build"], row["role"], row["calls"]) for row in calls]
    old, new = OLD.hex(), NEW.hex()
    assert sorted(counts, key=str) == [
        ("one", old, "app", 2),
        ("two", new, "app", 1),
        ("two", new, "library", 1),
        ("two", old, "app", 2),
        ("two", None, None, 0),
    ]


def test_issues_are_those_of_the_warehouse(fleet, tmp_path):
    """If a stack is in one segment, with one set of names."""
    shutil.copytree(fleet.folder / "w", tmp_path / "w")
    with Warehouse(tmp_path / "w") as warehouse:
        warehouse.compact()
        expected = {issue.id: issue.reports for issue in warehouse.issues()}
    issues = Counter()
    groups = run(request_of(fleet, Job.GROUPING, str(tmp_path / "w")), Engine.LOCAL, 1)
    for row in groups.to_pylist():
        issues[row["issue"]] += row["reports"]
    assert issues == expected


@pytest.mark.parametrize("job", [Job.NAMING, Job.GROUPING, Job.FLAME])
def test_answers_merge_in_any_order(fleet, job):
    """However they are joined before."""
    name = {Job.NAMING: "offsets"}.get(job, job.value)
    stage = jobs.STAGES[name]
    request = request_of(fleet, job)
    work = jobs.begin(name, request)
    parts = jobs.segment_parts(request.place)
    answers = [unpacked(work(packed(part)))[0] for part in parts]
    assert len(answers) == 3
    whole = stage.merge(answers).to_pylist()
    for first, second, third in permutations(answers):
        assert stage.merge([stage.merge([first, second]), third]).to_pylist() == whole
        assert stage.merge([first, stage.merge([second, third])]).to_pylist() == whole


@pytest.mark.parametrize("job", JOBS)
def test_a_uri_is_read_as_a_folder_is(fleet, expected, job):
    folder = request_of(fleet, job).place
    uri = Path(folder).as_uri()
    assert digests(run(request_of(fleet, job, uri), Engine.LOCAL, 1)) == expected[job]


def test_segments_without_a_manifest_are_read(fleet, tmp_path):
    """Then each one has its own names."""
    shutil.copytree(fleet.folder / "w" / "segments", tmp_path / "parts")
    flame = run(request_of(fleet, Job.FLAME, str(tmp_path / "parts")), Engine.LOCAL, 1)
    assert sum(flame["own"].to_pylist()) == fleet.weight


def test_a_digest_is_of_values():
    """Chunks and dictionaries do not matter; nulls do."""
    plain = pa.chunked_array([["b", "a", None, "b"]])
    encoded = [pa.array(each).dictionary_encode() for each in (["b", "a"], [None, "b"])]
    other = [pa.array(each).dictionary_encode() for each in (["b"], ["a", None, "b"])]
    tables = [pa.table({"x": pa.chunked_array(each)}) for each in (encoded, other)]
    assert digests(tables[0]) == digests(tables[1])
    chunks = pa.table({"x": pa.chunked_array([["b"], ["a", None, "b"]])})
    assert digests(pa.table({"x": plain})) == digests(chunks)
    assert digests(pa.table({"x": ["b", "a", "", "b"]})) != digests(chunks)


def test_what_is_no_input_is_refused(fleet, tmp_path):
    for job in JOBS:
        with pytest.raises(FileAccessError, match=r"no warehouse|no \*\.spool"):
            run(request_of(fleet, job, str(tmp_path)), Engine.LOCAL, 1)
    with pytest.raises(ArgumentError):
        run(request_of(fleet, Job.FLAME, "gopher://x/y"), Engine.LOCAL, 1)


@pytest.mark.parametrize("engine", [Engine.LOCAL, Engine.PROCESSES, Engine.DASK])
def test_damage_is_an_error_on_each_engine(fleet, tmp_path, engine):
    if engine is Engine.DASK and find_spec("dask") is None:
        pytest.skip("dask is not installed")
    shutil.copytree(fleet.folder / "w", tmp_path / "w")
    (tmp_path / "w" / "segments" / "00000002" / "nodes.parquet").write_bytes(b"damage")
    with pytest.raises(MachtraceError, match="not a table of a segment"):
        run(request_of(fleet, Job.FLAME, str(tmp_path / "w")), engine, 2)


@pytest.mark.parametrize(
    ("engine", "module"), [("ray", "ray"), ("dask", "dask"), ("spark", "pyspark")]
)
def test_an_engine_that_is_not_installed_is_refused(fleet, monkeypatch, engine, module):
    monkeypatch.setitem(sys.modules, module, None)
    for name in [each for each in sys.modules if each.startswith(f"{module}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    done = run_command("warehouse", "run", "flame", fleet.folder / "w", "--engine", engine)
    assert done.returncode == 1
    assert f"the engine {engine} requires the extra '{engine}'" in done.stderr


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_the_command_writes_rows(fleet, expected, tmp_path, suffix):
    path = tmp_path / f"rows.{suffix}"
    words = ("warehouse", "run", "flame", fleet.folder / "w", "-f", "json", "-o", path)
    done = run_command(*words)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["digests"] == expected[Job.FLAME]
    rows = pq.read_table(path) if suffix == "parquet" else pa.ipc.open_file(path).read_all()
    assert rows.num_rows == document["rows"]
    assert digests(rows) == expected[Job.FLAME]


def test_the_command_states_spools_that_cannot_be_read(fleet, tmp_path):
    done = run_command("warehouse", "run", "audit", fleet.folder / "spools")
    assert done.returncode == 1
    assert "c.spool" in done.stderr
    refused = run_command(
        "warehouse", "run", "audit", fleet.folder / "spools", "-o", tmp_path / "rows.csv"
    )
    assert refused.returncode == 2
    assert ".parquet" in refused.stderr
    assert not list(tmp_path.iterdir())
