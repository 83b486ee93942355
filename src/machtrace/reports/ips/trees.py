"""Trees of samples in a file that has no place for them: the key ``callTrees`` is ours."""

from __future__ import annotations

from collections.abc import Iterator

from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report
from machtrace.model.reported_frame import Adjustment
from machtrace.reports.ips.frames import frame_objects
from machtrace.reports.ips.images import written_bases


def tree_objects(report: Report, absolute: int) -> Iterator[JsonValue]:
    """An object for each tree: its nodes' parents, samples and frames in lists of one length.

    Args:
        report: whose trees they are.
        absolute: which image stands for none.
    """
    bases = written_bases(report.images, is_of_ips=False)
    for tree in report.trees:
        known: dict[str, JsonValue] = {
            "id": tree.thread,
            "name": tree.name,
            "queue": tree.queue,
            "count": tree.count,
            "attributed": True if tree.is_attributed else None,
            "innermostFirst": True if tree.is_inverted else None,
        }
        entry: dict[str, JsonValue] = {
            key: value for key, value in known.items() if value is not None
        }
        entry["parents"] = [node.parent for node in tree.nodes]
        entry["samples"] = [node.samples for node in tree.nodes]
        frames = [node.frame for node in tree.nodes]
        entry["frames"] = frame_objects(
            frames, innermost=Adjustment.RETURN, absolute=absolute, bases=bases
        )
        yield entry
