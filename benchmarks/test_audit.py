"""An audit's parts: scanning published files, answering all rules, and judging a million calls.

``make published-files`` fetches the files.
"""

import numpy as np
import pytest

from machtrace.audit.observed.code import RecordedCode
from machtrace.audit.observed.live_calls import LoadedImage, live_calls, tree_of_addresses
from machtrace.audit.observed.recording import RecordingBuilder
from machtrace.audit.observed.report import judge_calls
from machtrace.audit.resolution import resolve_rules
from machtrace.audit.rules import load_rules
from machtrace.audit.scan.app import open_images, scan_app
from machtrace.audit.trail.calls import Consent, Process
from machtrace.symbolizer.report_names import ReportNames
from tests.support.published.files import FETCHED, published_files

RULES = load_rules()
FILES = {
    file.path(FETCHED).name: file.path(FETCHED)
    for file in published_files()
    if file.name in {"canvas-ios", "duckdb", "grpcio", "ruff"}
}
CALLS, STACKS, DEPTH = 1_000_000, 20_000, 35


def fetched(name):
    if not FILES[name].exists():
        pytest.skip("not fetched: make published-files")
    return FILES[name]


@pytest.mark.parametrize("name", FILES)
def test_scan(benchmark, name):
    """Seconds for each 100 MB of code."""
    path = fetched(name)
    ((_, contents),) = open_images(path, [])
    size = sum(section.size for section in contents.image.code_sections)
    benchmark.pedantic(scan_app, (path, RULES), rounds=5, warmup_rounds=1)
    if benchmark.stats is not None:
        benchmark.extra_info["code_bytes"] = size
        benchmark.extra_info["seconds_per_100_mb"] = benchmark.stats.stats.median * 1e8 / size


@pytest.mark.parametrize("name", FILES)
def test_rules(benchmark, name):
    """All rules answered for one file."""
    answers = benchmark.pedantic(resolve_rules, (fetched(name), RULES), rounds=5, warmup_rounds=1)
    assert len(answers.answers) == len(RULES)


@pytest.fixture(scope="module")
def recording():
    """A million calls with 20,000 stacks, of 40 libraries, in one process."""
    generator = np.random.default_rng(1)
    images = [
        LoadedImage(f"/App/lib{number}.dylib", f"{number:032x}", start, start + (1 << 20))
        for number, start in enumerate(range(1 << 32, (1 << 32) + (40 << 24), 1 << 24))
    ]
    starts = np.array([image.start for image in images], np.uint64)
    sizes = starts[generator.integers(0, len(images), STACKS * DEPTH)]
    addresses = sizes + generator.integers(4, 4096, STACKS * DEPTH, np.uint64) * np.uint64(4)
    tree, nodes = tree_of_addresses(addresses, np.arange(1, STACKS + 1, dtype=np.int64) * DEPTH)
    watches = [rule.watch for rule in RULES.rules]
    stack = generator.integers(0, STACKS, CALLS)
    columns = {
        "time": np.arange(CALLS, dtype=np.int64) * 1000,
        "thread": generator.integers(0, 16, CALLS),
        "rule": stack % len(watches),
        "stack": nodes[stack],
        "consent": np.where(np.arange(CALLS) < CALLS // 2, Consent.BEFORE, Consent.GRANTED),
    }
    process = Process(run="1", from_start=True)
    builder = RecordingBuilder(RULES)
    builder.add(
        live_calls(
            "bench", process, RULES, watches=watches, images=images, tree=tree, columns=columns
        )
    )
    return builder.recording()


def test_judge_a_million_calls(benchmark, recording):
    """Libraries, consent and findings; names are not looked up, since there are no files."""

    def judge():
        code = RecordedCode(recording.trail, ReportNames())
        return judge_calls(recording, RULES, code.map())

    report = benchmark.pedantic(judge, rounds=3, warmup_rounds=1)
    assert sum(finding.calls for finding in report.findings) == CALLS // 2
