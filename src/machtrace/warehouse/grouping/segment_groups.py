"""The issues of one segment: its subjects, their fingerprints, and counts that can be added up.

A subject is a stack that a report is about: a crash's or a hang's one, each call of a recording.
Profiles are about no stack. A variant is a distinct stack of an issue. Counts are by app, build,
system, exception and day.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from machtrace.reports.analysis.fingerprint import (
    Fingerprint,
    FingerprintBasis,
    FingerprintFrame,
    wait_kind,
)
from machtrace.reports.analysis.frame_owner import OwnerReason
from machtrace.reports.analysis.grouping_rules import GroupingRules
from machtrace.warehouse.grouping.distinct import hashes_of, smallest
from machtrace.warehouse.grouping.segment_stacks import SegmentStacks
from machtrace.warehouse.segment import Segment, numbers
from machtrace.warehouse.triage import VariantKey

_DAY_NS = 86_400 * 10**9
_TEXT = pa.dictionary(pa.int32(), pa.string())
ISSUES = pa.schema(
    [
        ("id", pa.string()),
        ("kind", pa.string()),
        ("title", pa.string()),
        ("is_build_sensitive", pa.bool_()),
        ("facts", pa.string()),  # the fingerprint, as JSON
    ]
)
VARIANTS = pa.schema(
    [
        ("issue", pa.int32()),
        ("kind", _TEXT),
        ("stack", pa.binary(16)),
        ("cause", pa.string()),
        ("node", pa.int32()),
        ("reports", pa.int64()),
        ("is_build_sensitive", pa.bool_()),  # by the names of this segment
    ]
)
COUNTS = pa.schema(
    [
        ("issue", pa.int32()),
        ("kind", _TEXT),
        ("app", _TEXT),
        ("build", _TEXT),
        ("os", _TEXT),
        ("exception", _TEXT),
        ("day", pa.date32()),
        ("reports", pa.int64()),
        ("first", pa.int64()),  # in ns since 1970
        ("last", pa.int64()),
        ("devices", pa.list_(pa.uint64())),  # a sketch: see ``distinct``
    ]
)
_BY = ("app", "build", "os", "exception")

Ids: TypeAlias = npt.NDArray[np.int64]


class IssueFacts(NamedTuple):
    """An issue without counts."""

    id: str
    kind: str
    title: str
    is_build_sensitive: bool
    facts: str


class SegmentGroups(NamedTuple):
    """The issues of a segment."""

    issues: pa.Table
    variants: pa.Table
    counts: pa.Table


class Members(NamedTuple):
    """The subjects of a segment's reports."""

    report: Ids
    variant: Ids
    """By subject: the number of its variant."""
    kind: list[str]
    """By variant."""
    cause: list[str]
    """By variant: the kind of what a hang waited for; if rules may match it, the exception."""
    node: list[int]
    """By variant."""

    def of(self, reports: npt.NDArray[np.bool_]) -> Members:
        """Return the subjects of some reports, with the same variants."""
        chosen = reports[self.report]
        return self._replace(report=self.report[chosen], variant=self.variant[chosen])


def members_of(
    reports: pa.Table, occurrences: pa.Table, rules: GroupingRules | None = None
) -> Members:
    """Return the subjects of all reports of a segment; variants are in canonical order.

    Args:
        reports: those of the segment.
        occurrences: those of the segment.
        rules: by which they are grouped.
    """
    report = numbers(occurrences, "report").astype(np.int64)
    node = numbers(occurrences, "node").astype(np.int64)
    roles = _texts(occurrences, "role")
    kinds = _texts(reports, "kind")
    of_kind = kinds.codes[report]
    subject, sample = roles.code("subject"), roles.code("sample")
    audit, profile = kinds.code("audit"), kinds.code("profile")
    is_subject = (roles.codes == subject) & (of_kind != audit) & (of_kind != profile)
    is_subject |= (roles.codes == sample) & (of_kind == audit)
    rows = np.flatnonzero(is_subject & (node > 0))
    report, node = report[rows], node[rows]
    causes = _causes(reports, kinds.codes == kinds.code("hang"), has_rules=rules is not None)
    first, variant = _distinct((of_kind[rows], node, causes.codes[report]))
    pairs, _ = _distinct((variant, report))
    return Members(
        report=report[pairs],
        variant=variant[pairs],
        kind=[kinds.values[each] for each in of_kind[rows][first]],
        cause=[causes.values[each] for each in causes.codes[report[first]]],
        node=node[first].tolist(),
    )


def groups_of(
    segment: Segment,
    better: Mapping[VariantKey, IssueFacts],
    rules: GroupingRules | None = None,
) -> SegmentGroups:
    """Return the issues of a segment.

    Args:
        segment: with the names of now.
        better: issues of variants whose frames have names in other segments only.
        rules: what adjusts fingerprints.
    """
    members = members_of(segment.reports, segment.occurrences, rules)
    stacks = SegmentStacks(segment, rules)
    keys = dict(
        zip(
            numbers(segment.stacks, "node").tolist(), segment.stacks["key"].to_pylist(), strict=True
        )
    )
    issues: dict[str, int] = {}
    rows: list[IssueFacts] = []
    of_variant, sensitive = [], []
    for kind, node, cause in zip(members.kind, members.node, members.cause, strict=True):
        own, is_sensitive = stacks.hash_of(node, kind, cause)
        sensitive.append(is_sensitive)
        facts = better.get((kind, keys[node], cause)) if is_sensitive else None
        identity = f"{kind}-{own}" if facts is None else facts.id
        number = issues.setdefault(identity, len(issues))
        if number == len(rows):
            rows.append(facts or issue_facts(kind, stacks.fingerprint(node, kind, cause)))
        of_variant.append(number)
    issue = np.array(of_variant, np.int64)
    variants = pa.table(
        [
            pa.array(issue, pa.int32()),
            pa.array(members.kind, pa.string()).cast(_TEXT),
            pa.array([keys[node] for node in members.node], pa.binary(16)),
            pa.array(members.cause, pa.string()),
            pa.array(members.node, pa.int32()),
            pa.array(np.bincount(members.variant, minlength=len(issue)), pa.int64()),
            pa.array(sensitive, pa.bool_()),
        ],
        schema=VARIANTS,
    )
    columns = zip(*rows, strict=True) if rows else [()] * len(ISSUES)
    arrays = [pa.array(each, field.type) for each, field in zip(columns, ISSUES, strict=True)]
    return SegmentGroups(
        issues=pa.table(arrays, schema=ISSUES),
        variants=variants,
        counts=counts_of(segment.reports, members, issue, [row.kind for row in rows]),
    )


def counts_of(reports: pa.Table, members: Members, issue: Ids, kinds: list[str]) -> pa.Table:
    """Return the counts of subjects.

    Args:
        reports: those of the segment.
        members: those that are counted.
        issue: by variant: its issue.
        kinds: by issue: its kind.
    """
    report = members.report
    of_issue = issue[members.variant] if len(issue) else np.zeros(0, np.int64)
    # An issue with several variants of one report has that report once.
    pairs, _ = _distinct((of_issue, report))
    of_issue, report = of_issue[pairs], report[pairs]
    time = numbers(_filled(reports), "time")
    texts = {name: _texts(reports, name) for name in _BY}
    day = time // _DAY_NS
    first, group = _distinct((of_issue, *(texts[name].codes[report] for name in _BY), day[report]))
    size = len(first)
    earliest = np.full(size, np.iinfo(np.int64).max)
    latest = np.full(size, np.iinfo(np.int64).min)
    np.minimum.at(earliest, group, time[report])
    np.maximum.at(latest, group, time[report])
    devices = _texts(reports, "device")
    stated = np.array([bool(each) for each in devices.values])[devices.codes[report]]
    hashes = hashes_of(devices.values)[devices.codes[report]]
    owner, value = smallest(group[stated], hashes[stated])
    head = first.tolist()
    columns: list[Any] = [of_issue[head], np.array(kinds, object)[of_issue[head]].tolist()]
    for name in _BY:
        own = texts[name]
        columns.append([own.values[each] for each in own.codes[report[head]]])
    columns += [day[report[head]].astype(np.int32), np.bincount(group, minlength=size)]
    columns += [earliest, latest]
    made = [
        pa.array(each, pa.string()).cast(field.type)
        if pa.types.is_dictionary(field.type)
        else pa.array(each, field.type)
        for each, field in zip(columns, COUNTS, strict=False)
    ]
    return pa.table([*made, sketches(owner, value, size)], schema=COUNTS)


def sketches(owner: Ids, value: npt.NDArray[np.uint64], size: int) -> pa.Array:
    """Return sketches as a column of lists."""
    offsets = np.zeros(size + 1, np.int32)
    np.cumsum(np.bincount(owner, minlength=size), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(value, pa.uint64()))


def fingerprint_of(facts: str) -> Fingerprint:
    """Return the fingerprint that :attr:`IssueFacts.facts` has."""
    document = json.loads(facts)
    frames = (
        FingerprintFrame(place, image, name, is_named, OwnerReason(reason))
        for place, image, name, is_named, reason in document["frames"]
    )
    return Fingerprint(document["hash"], FingerprintBasis[document["basis"]], tuple(frames))


def issue_facts(kind: str, made: Fingerprint) -> IssueFacts:
    """Return the issue of a kind of report and a fingerprint."""
    frames = [(*frame[:4], frame.reason.value) for frame in made.frames]
    facts = json.dumps({"hash": made.hash, "basis": made.basis.name, "frames": frames})
    title = made.title
    if made.basis is FingerprintBasis.CALL and len(made.frames) > 1:
        title = f"{made.frames[0].name} from {made.frames[1].name} ({made.frames[1].image})"
    return IssueFacts(f"{kind}-{made.hash}", kind, title, made.is_build_sensitive, facts)


class _Texts(NamedTuple):
    """A column of texts: a code for each row, and the text of each code."""

    codes: Ids
    values: list[str]

    def code(self, text: str) -> int:
        """Return the code of a text; -1 if no row has it."""
        return self.values.index(text) if text in self.values else -1


def _causes(reports: pa.Table, is_hang: npt.NDArray[np.bool_], *, has_rules: bool) -> _Texts:
    """Return what beside its stack identifies a report, in an order of its own."""
    waits, raised = _texts(reports, "waits_for"), _texts(reports, "exception")
    kinds = [wait_kind(value) if value else "" for value in waits.values]
    others = raised.values if has_rules else [""] * len(raised.values)
    values = sorted({*kinds, *others})
    place = {each: at for at, each in enumerate(values)}
    of_hang = np.array([place[kind] for kind in kinds], np.int64)[waits.codes]
    of_other = np.array([place[other] for other in others], np.int64)[raised.codes]
    return _Texts(np.where(is_hang, of_hang, of_other), values)


def _texts(table: pa.Table, name: str) -> _Texts:
    column = table[name].combine_chunks()
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    values = [*encoded.dictionary.to_pylist(), ""]
    codes = encoded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
    return _Texts(codes.astype(np.int64), values)


def _filled(reports: pa.Table) -> pa.Table:
    import pyarrow.compute as pc

    time = pc.coalesce(reports["time"], reports["received"])
    return pa.table({"time": time})


def _distinct(columns: tuple[Ids, ...]) -> tuple[Ids, Ids]:
    """Return the first row of each distinct one, in their order, and by row its number."""
    order = np.lexsort(columns[::-1])
    is_new = np.ones(len(order), np.bool_)
    if len(order):
        is_new[1:] = False
    for column in columns:
        ordered = column[order]
        is_new[1:] |= ordered[1:] != ordered[:-1]
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(is_new) - 1
    return order[is_new], number
