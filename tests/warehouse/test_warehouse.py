"""A warehouse's folder: reports arrive once, whatever happens, and are there afterwards."""

from __future__ import annotations

import shutil

import pytest

from machtrace.errors import FileAccessError, FormatError
from machtrace.warehouse.warehouse import Warehouse
from tests.support.reports.samples import CRASH, IPS, REPORT_SAMPLES

FILES = [(name, data) for name, data in REPORT_SAMPLES.items()]


@pytest.fixture
def warehouse(tmp_path):
    with Warehouse.create(tmp_path / "w") as made:
        yield made


def counts(warehouse: Warehouse) -> tuple[int, int]:
    rows = warehouse.segments
    return sum(row.reports for row in rows), sum(row.occurrences for row in rows)


def test_reports_of_every_kind_arrive(warehouse):
    warehouse.receive(FILES)
    added = warehouse.flush()
    assert added.quarantined == 0
    assert added.reports + added.repeated >= len(FILES)
    assert counts(warehouse)[0] == added.reports
    assert not list(warehouse.check())


def test_a_report_that_arrives_again_is_there_once(warehouse):
    warehouse.receive(FILES)
    first = warehouse.flush()
    before = counts(warehouse)
    warehouse.receive(FILES)
    again = warehouse.flush()
    assert again.reports == 0
    assert again.repeated == first.reports + first.repeated
    assert counts(warehouse) == before


def test_what_was_received_is_there_after_a_crash(tmp_path):
    first = Warehouse.create(tmp_path / "w")
    first.receive(FILES)
    shutil.copytree(tmp_path / "w", tmp_path / "copy")  # as the disk is when the process is killed
    first.close()
    with Warehouse(tmp_path / "copy") as second:
        added = second.flush()
        assert added.reports > 0
        assert not list(second.check())
        assert second.flush() == (0, 0, 0)


def test_a_segment_that_was_not_committed_is_left_out(warehouse, monkeypatch):
    warehouse.receive(FILES)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("machtrace.warehouse.ingest.store_segment", killed)
    with pytest.raises(KeyboardInterrupt):
        warehouse.flush()
    monkeypatch.undo()
    assert counts(warehouse) == (0, 0)
    added = warehouse.flush()
    assert counts(warehouse)[0] == added.reports > 0
    folders = list((warehouse.folder / "segments").iterdir())
    assert len(folders) == len(warehouse.segments)


def test_what_cannot_be_read_is_in_quarantine(warehouse):
    warehouse.receive(
        [
            ("bad.ips", b"\xff\xfe nothing"),
            ("good.crash", CRASH),
            ("", b""),
        ]
    )
    added = warehouse.flush()
    assert (added.reports, added.quarantined) == (1, 2)
    assert [row.name for row in warehouse.quarantined] == ["bad.ips", ""]
    assert warehouse.flush() == (0, 0, 0)


def test_compaction_changes_no_row(warehouse):
    for file in FILES:
        warehouse.receive([file])
        warehouse.flush()
    before = counts(warehouse)
    assert warehouse.compact() > 1
    assert len(warehouse.segments) == 1
    assert counts(warehouse) == before
    assert not list(warehouse.check())
    warehouse.receive(FILES)
    assert warehouse.flush().reports == 0


def test_one_process_writes_at_a_time(warehouse):
    warehouse.receive(FILES[:1])
    with Warehouse(warehouse.folder) as other, pytest.raises(FileAccessError, match="another"):
        other.receive(FILES[:1])
    with Warehouse(warehouse.folder) as reader:
        assert reader.segments == []


def test_folders_that_are_no_warehouse(tmp_path):
    with pytest.raises(FileAccessError, match="not a warehouse"):
        Warehouse(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileAccessError, match="not empty"):
        Warehouse.create(tmp_path)
    folder = tmp_path / "w"
    Warehouse.create(folder).close()
    for suffix in ("-wal", "-shm"):
        (folder / f"manifest.sqlite{suffix}").unlink(missing_ok=True)
    (folder / "manifest.sqlite").write_bytes(b"x" * 5000)
    with pytest.raises(FormatError, match="not a manifest"):
        Warehouse(folder)


def test_check_states_damage(warehouse):
    warehouse.receive([("a.ips", IPS)])
    warehouse.flush()
    folder = warehouse.segment_folder(warehouse.segments[0].id)
    (folder / "nodes.parquet").write_bytes(b"damaged")
    assert [problem.where for problem in warehouse.check()] == [
        folder.name.lstrip("0").join(("segment ", ""))
    ]
