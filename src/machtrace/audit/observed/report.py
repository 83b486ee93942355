"""Observed calls, judged: those that the policies do not allow, and what could not be judged.

The identity of a finding has no address and no version, so that it is the same for the next build.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from machtrace.audit.findings import Occurrence
from machtrace.audit.observed.consent import ConsentMarker, consent_states
from machtrace.audit.observed.coverage import Coverage, coverage_of
from machtrace.audit.observed.process_calls import NOT_DEFINED
from machtrace.audit.observed.recall import Recall
from machtrace.audit.observed.recording import Recording
from machtrace.audit.policies import Condition, Severity
from machtrace.audit.rules import Rule, RuleKind, RuleSet
from machtrace.audit.scan import attribution as scanned
from machtrace.audit.scan.app import Declarations
from machtrace.audit.scan.image import Certainty
from machtrace.audit.scan.manifest import PREFIX
from machtrace.audit.trail.app_code import AppCode, AppSite
from machtrace.audit.trail.attribution import Attribution, AttributionFlag, attribute
from machtrace.audit.trail.calls import NO_TIME, SECOND, CallFlag, Consent, ImageRole, Trail
from machtrace.audit.trail.code_facts import NO_FACTS
from machtrace.audit.trail.libraries import CodeMap, Evidence
from machtrace.audit.trail.owners import UNKNOWN, Reason
from machtrace.audit.trail.stacks import CodeAddress
from machtrace.frozen import dataclass
from machtrace.model.text import counted

# --- Declarations of manifests, compared with the calls of code and with observed ones ---
#
# Each disagreement is a finding with a witness: the stack of a call, a site in the code, or the
# key of a manifest (see ``docs/audit.md``). Only Apple's required-reason categories are declared.

Calls = Mapping[tuple[str, str], int]
"""Observed calls by the identifier of the caller's image and the watched thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A finding without observed calls."""

    condition: Condition
    severity: Severity
    library: str
    rule: Rule
    message: str
    occurrences: tuple[Occurrence, ...] = ()


def disagreements(
    declarations: Declarations, coverage: Coverage, calls: Calls, rules: RuleSet
) -> Iterator[Disagreement]:
    """Yield what is declared, called by code and observed in some of these ways alone.

    Calls that nothing declares are findings of their own; see ``observed.report``.
    """
    sites: dict[tuple[str, str], list[AppSite]] = defaultdict(list)
    for site in coverage.sites:
        key = site.site.image.uuid, site.site.site.rule.watch
        sites[key].append(site.site)
    by_watch = {rule.watch: rule for rule in rules.rules}
    for (image, watch), places in sorted(sites.items()):
        rule = by_watch[watch]
        if not rule.required or calls.get((image, watch)):
            continue
        missing = declarations.undeclared(image, rule)
        if missing and any(place.site.certainty is not Certainty.POSSIBLE for place in places):
            yield from _of(rules, Condition.UNREACHED, rule, places, _undeclared(missing))
        elif not missing:
            yield from _of(rules, Condition.UNTESTED, rule, places, "as declared")
    yield from _in_vain(declarations, sites, calls, rules)


def _of(
    rules: RuleSet, condition: Condition, rule: Rule, places: list[AppSite], declared: str
) -> Iterator[Disagreement]:
    severity = rules.severity(condition, _DEFAULTS[condition])
    by_library: dict[str, list[AppSite]] = defaultdict(list)
    for place in places:
        by_library[place.library or place.image.name].append(place)
    for library, members in by_library.items() if severity is not None else ():
        number = counted(len(members), "site")
        yield Disagreement(
            condition=condition,
            severity=severity or Severity.NOTE,
            library=library,
            rule=rule,
            message=f"{library} calls {rule.watch} at {number}, {declared}; none was reached",
            occurrences=tuple(map(_occurrence, members)),
        )


def _in_vain(
    declarations: Declarations,
    sites: Mapping[tuple[str, str], list[AppSite]],
    calls: Calls,
    rules: RuleSet,
) -> Iterator[Disagreement]:
    severity = rules.severity(Condition.IN_VAIN, _DEFAULTS[Condition.IN_VAIN])
    if severity is None:
        return
    required = {rule.watch: rule.required for rule in rules.rules}
    used: dict[str, set[str]] = defaultdict(set)
    for image, watch in (*sites, *(key for key, number in calls.items() if number)):
        used[declarations.unit(image)].update(required.get(watch, ()))
    for unit, declared in sorted(declarations.declared.items()):
        for category in sorted(declared.keys() - used[unit]):
            name = unit.rpartition("/")[2].rpartition(".")[0] or unit
            key = f"{PREFIX}{category}"
            yield Disagreement(
                condition=Condition.IN_VAIN,
                severity=severity,
                library=name,
                rule=Rule(watch=key, kind=RuleKind.DATA, category=category, required=(category,)),
                message=f"{declared[category]} declares {key}, and no code of {name} that was "
                "scanned calls it, and no call was observed",
            )


_DEFAULTS = {
    Condition.UNREACHED: Severity.WARNING,
    Condition.UNTESTED: Severity.NOTE,
    Condition.IN_VAIN: Severity.NOTE,
}


def _undeclared(categories: tuple[str, ...]) -> str:
    return (
        f"and no manifest declares {' or '.join(f'{PREFIX}{category}' for category in categories)}"
    )


def _occurrence(place: AppSite) -> Occurrence:
    library = place.library or place.image.name
    return Occurrence(
        image=place.image.path,
        uuid=place.image.uuid,
        site=place.site,
        attribution=scanned.Attribution(library=library, evidence=scanned.Evidence.NONE, detail=""),
    )


# --- Observed calls, judged: those that the policies do not allow, and what could not be judged ---

MAX_STACKS = 20
"""Stacks of a finding: those with the most calls."""
SYSTEM_NAME, UNKNOWN_NAME = "system", "unknown"
REASONS = {
    Reason.NO_STACK: "no stack was recorded",
    Reason.INNER_MISSING: "inner frames are missing",
    Reason.OUTER_MISSING: "outer frames are missing",
    Reason.UNKNOWN_CODE: "the code is in no image, or its library is not listed",
    Reason.UNNAMED_SYSTEM: "system functions without names are in between",
    Reason.SCHEDULED: "a queue or a timer called it",
    Reason.SEVERAL: "functions of several libraries may have called it",
    Reason.UNKNOWN_JUMP: "the caller does not lead to it",
}
EVIDENCE = {
    Evidence.IMAGE: "image",
    Evidence.LINK_MAP: "link map",
    Evidence.DEBUG_INFORMATION: "debug information",
    Evidence.SWIFT_MODULE: "Swift module",
    Evidence.CLASS_PREFIX: "name prefix",
    Evidence.NEIGHBOURS: "neighbours",
    Evidence.NONE: "none",
}
_FLAG_TEXTS = {
    AttributionFlag.REFLECTION: "by name, through the system",
    AttributionFlag.THROUGH_SYSTEM: "through a system function",
    AttributionFlag.TAIL_CALL: "by a jump, without a frame",
    AttributionFlag.SWIZZLED: "past a replacement of the function",
    AttributionFlag.PASSED_THROUGH: "through a library that passes through",
    AttributionFlag.INLINED: "inlined",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Whose a call is."""

    library: str
    owner: str
    evidence: str
    circumstances: tuple[str, ...] = ()
    """How the call was made, if it was not direct."""
    frame: int | None = None
    """The index of the asker's frame in the stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStack:
    """Calls with one stack."""

    calls: int
    node: int
    """In the tree of the trail."""
    frames: tuple[CodeAddress, ...]
    """Return addresses, the innermost first."""
    asker: Asker


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFinding:
    """Calls of one function by one library that a policy does not allow."""

    condition: Condition
    severity: Severity
    library: str
    rule: Rule
    message: str
    calls: int
    first_time: int | None
    """Nanoseconds since 1970; None if no call has a time."""
    stacks: tuple[ObservedStack, ...]
    processes: tuple[int, ...] = ()
    """Indices of those that made the calls."""
    occurrences: tuple[Occurrence, ...] = ()
    """Code that makes the calls, as far as it was scanned."""

    @property
    def identity(self) -> str:
        """The same for the same finding in another build."""
        return f"{self.condition.value}:{self.library}:{self.rule.watch}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ObservedReport:
    """Observed calls, judged."""

    recording: Recording
    rules: RuleSet
    consent: npt.NDArray[np.uint8]
    """The :class:`Consent` of each call."""
    attribution: Attribution
    findings: tuple[ObservedFinding, ...]
    unjudged: tuple[str, ...]
    """The calls and rules that could not be judged, one line each."""
    recall: Recall | None = None
    """The comparison with the system's report, if there is one."""
    coverage: Coverage | None = None
    """The call sites that were reached; None if the app's files were not read."""

    def asker(self, row: int) -> Asker:
        """Return whose the calls of a row of the attribution are."""
        return _asker(self.attribution, row)

    def stack(self, row: int, calls: int) -> ObservedStack:
        """Return the stack of a row of the attribution, with a number of calls."""
        return _stack(self.recording.trail, self.attribution, row, calls)

    def rule(self, number: int) -> Rule:
        """Return a rule of the trail."""
        watch = self.recording.trail.rules[number]
        return next(rule for rule in self.rules.rules if rule.watch == watch)


def judge_calls(
    recording: Recording,
    rules: RuleSet,
    code: CodeMap,
    *,
    app: AppCode | None = None,
    declarations: Declarations | None = None,
    marker: ConsentMarker | None = None,
    recall: Recall | None = None,
) -> ObservedReport:
    """Compare observed calls with the policies.

    Args:
        recording: the calls.
        rules: the rules that they were recorded by, and the policies.
        code: whose code each address of the recording is.
        app: the app's files, for functions that left no frame and for call sites.
        declarations: what the app's manifests declare.
        marker: the moment of consent; without it the recorded state holds.
        recall: the comparison with the system's report: an access without a call could not be
            judged.
    """
    attribution = attribute(recording.trail, code, NO_FACTS if app is None else app.facts)
    judge = _Judge(recording, rules, attribution, consent_states(recording, marker))
    findings = list(judge.findings())
    coverage = None if app is None else coverage_of(recording.trail, attribution, app)
    if declarations is not None:
        findings += judge.undeclared(declarations)
        if coverage is not None:
            findings += judge.disagreements(declarations, coverage)
    order = list(Severity)
    findings.sort(key=lambda each: (order.index(each.severity), each.library, each.identity))
    return ObservedReport(
        recording=recording,
        rules=rules,
        consent=judge.consent,
        attribution=attribution,
        findings=tuple(findings),
        unjudged=(
            *judge.unjudged(),
            *(() if recall is None else recall.alarms()),
            *(() if app is None else app.problems),
            *(() if declarations is None else declarations.problems),
        ),
        recall=recall,
        coverage=coverage,
    )


def _asker(attribution: Attribution, row: int) -> Asker:
    number = int(attribution.asker[row])
    if number == UNKNOWN:
        reason = REASONS.get(Reason(int(attribution.asker_reason[row])), "unknown")
        candidates = [
            attribution.library_name(each) for each in attribution.candidates.get(row, ())
        ]
        one_of = f"one of {', '.join(candidates)}: " if candidates else ""
        return Asker(library=UNKNOWN_NAME, owner=UNKNOWN_NAME, evidence=f"{one_of}{reason}")
    library = attribution.code.libraries[number]
    flags = AttributionFlag(int(attribution.flags[row]))
    owner = int(attribution.owner[row])
    is_system = library.role is ImageRole.SYSTEM
    return Asker(
        library=SYSTEM_NAME if is_system else library.name,
        owner=SYSTEM_NAME if is_system else attribution.library_name(owner),
        evidence=EVIDENCE[Evidence(int(attribution.evidence[row]))],
        circumstances=tuple(text for flag, text in _FLAG_TEXTS.items() if flag in flags),
    )


class _Judge:
    def __init__(
        self,
        recording: Recording,
        rules: RuleSet,
        attribution: Attribution,
        consent: npt.NDArray[np.uint8],
    ) -> None:
        self._recording, self._rules = recording, rules
        self._trail, self._calls = recording.trail, recording.trail.calls
        self._attribution = attribution
        self.consent = consent
        by_watch = {rule.watch: rule for rule in rules.rules}
        self._rule_of = [by_watch[watch] for watch in recording.trail.rules]
        libraries = attribution.code.libraries
        self._names = [library.name for library in libraries]
        self._uuids = [image.uuid for image in recording.trail.images]
        is_system = np.array([each.role is ImageRole.SYSTEM for each in libraries] + [False])
        self._library = attribution.asker[attribution.row_of_call]
        self._is_unknown = self._library == UNKNOWN
        self._is_app = ~self._is_unknown & ~is_system[self._library]

    def findings(self) -> Iterator[ObservedFinding]:
        """Yield the findings of each policy."""
        calls = self._calls
        is_before = (self.consent == Consent.BEFORE) | (self.consent == Consent.REFUSED)
        yield from self._of(Condition.BEFORE_CONSENT, Severity.FAULT, is_before, "without consent")
        background = calls.has(CallFlag.BACKGROUND)
        yield from self._of(Condition.BACKGROUND, None, background, "in the background")
        seconds = self._interval()
        if seconds is not None:
            repeated = self._repeated(seconds)
            text = f"again within {seconds:g} s"
            yield from self._of(Condition.EVERY, None, repeated > 0, text, repeated)
        if self._rules.allowed:
            is_other = np.array([name not in self._rules.allowed for name in self._names] + [False])
            text = "and is not an allowed library"
            rows = is_other[self._library]
            yield from self._of(Condition.NOT_LISTED, Severity.FAULT, rows, text)

    def undeclared(self, declarations: Declarations) -> Iterator[ObservedFinding]:
        """Yield the calls of required-reason functions that no manifest declares."""
        images = self._images()
        for number, rule in enumerate(self._rule_of):
            missing = np.array(
                [*(bool(declarations.undeclared(uuid, rule)) for uuid in self._uuids), False]
            )
            keys = " or ".join(f"{PREFIX}{each}" for each in rule.required)
            rows = (self._calls.rule == number) & missing[images]
            text = f"and no manifest of it declares {keys}"
            yield from self._of(Condition.UNDECLARED, Severity.FAULT, rows, text)

    def disagreements(
        self, declarations: Declarations, coverage: Coverage
    ) -> Iterator[ObservedFinding]:
        """Yield what declarations, code and calls disagree on, beside undeclared calls."""
        images = self._images()
        keys = images.astype(np.int64) << 16 | self._calls.rule
        sums: dict[tuple[str, str], int] = {}
        for key in np.unique(keys[images >= 0]).tolist():
            sums[self._uuids[key >> 16], self._trail.rules[key & 0xFFFF]] = 1
        for disagreement in disagreements(declarations, coverage, sums, self._rules):
            yield ObservedFinding(
                condition=disagreement.condition,
                severity=disagreement.severity,
                library=disagreement.library,
                rule=disagreement.rule,
                message=disagreement.message,
                calls=0,
                first_time=None,
                stacks=(),
                occurrences=disagreement.occurrences,
            )

    def _images(self) -> npt.NDArray[np.int32]:
        """Return by call the image of the code that made it; -1 if that is unknown."""
        frames = self._attribution.frame[self._attribution.row_of_call]
        return np.where(frames >= 0, self._trail.stacks.image[frames], -1)

    def unjudged(self) -> Iterator[str]:
        """Yield what the policies could not be compared with."""
        yield from self._recording.problems
        weights = self._calls.calls
        for reason, text in REASONS.items():
            rows = self._attribution.asker_reason[self._attribution.row_of_call] == reason
            unknown = int(weights[rows & self._is_unknown].sum())
            if unknown:
                yield f"{counted(unknown, 'call')} whose library is unknown: {text}"
        unstated = int(weights[self._is_app & (self.consent == Consent.UNKNOWN)].sum())
        if unstated and self._rules.severity(Condition.BEFORE_CONSENT, Severity.FAULT) is not None:
            yield (
                f"{counted(unstated, 'call')} whose consent is unknown: watch the function that "
                "gives it, or pass --consent"
            )
        untimed = int(weights[self._is_app & (self._calls.time == NO_TIME)].sum())
        if untimed and self._interval() is not None:
            yield f"{counted(untimed, 'call')} without a time, whose intervals are unknown"
        if self._is_all_absent():
            yield "nothing defines what the rules watch: check their names"
        for dead in self._recording.dead:
            if dead.is_blind:
                source = self._recording.sources[dead.process]
                yield f"{source}: {dead.watch} was not watched: {dead.reason}"

    def _is_all_absent(self) -> bool:
        """Return whether no process has any of the watched functions."""
        absent = {
            (each.watch, each.process)
            for each in self._recording.dead
            if each.reason == NOT_DEFINED
        }
        pairs = len(self._trail.rules) * len(self._trail.processes)
        return 0 < pairs == len(absent)

    def _interval(self) -> float | None:
        """Return the least seconds between calls; None if the policies have none."""
        for policy in self._rules.policies:
            if policy.condition is Condition.EVERY and policy.severity is not None:
                return policy.seconds
        return None

    def _repeated(self, seconds: float) -> npt.NDArray[np.int64]:
        """Return for each row how many of its calls came too soon after the one before.

        A row that stands for several calls repeats all but its first at once.
        """
        calls = self._calls
        repeated = np.zeros(len(calls), np.int64)
        timed = np.flatnonzero(calls.time != NO_TIME)
        keys = (calls.time, calls.rule, self._library, calls.process)
        order = timed[np.lexsort([key[timed] for key in keys])]
        repeated[order] = calls.calls[order] - 1
        is_same = np.ones(max(0, len(order) - 1), np.bool_)
        for key in keys[1:]:
            is_same &= key[order][1:] == key[order][:-1]
        is_soon = np.diff(calls.time[order]) < round(seconds * SECOND)
        repeated[order[1:][is_same & is_soon]] += 1
        return repeated

    def _of(
        self,
        condition: Condition,
        default: Severity | None,
        rows: npt.NDArray[np.bool_],
        text: str,
        weights: npt.NDArray[np.int64] | None = None,
    ) -> Iterator[ObservedFinding]:
        severity = self._rules.severity(condition, default)
        if severity is None:
            return
        counts = self._calls.calls if weights is None else weights
        selected = np.flatnonzero(rows & self._is_app)
        keys = self._library[selected].astype(np.int64) << 16 | self._calls.rule[selected]
        pairs, places = np.unique(keys, return_inverse=True)
        order = selected[np.argsort(places.reshape(-1), kind="stable")]
        bounds = np.cumsum([0, *np.bincount(places.reshape(-1), minlength=len(pairs)).tolist()])
        for number, pair in enumerate(pairs.tolist()):
            members = order[bounds[number] : bounds[number + 1]]
            library, rule = self._names[pair >> 16], self._rule_of[pair & 0xFFFF]
            total = int(counts[members].sum())
            times = "once" if total == 1 else f"{total:,} times"
            yield ObservedFinding(
                condition=condition,
                severity=severity,
                library=library,
                rule=rule,
                message=f"{library} called {rule.watch} ({rule.category}) {times} {text}",
                calls=total,
                first_time=self._first_time(members),
                stacks=self._stacks(members, counts),
                processes=tuple(np.unique(self._calls.process[members]).tolist()),
            )

    def _first_time(self, rows: npt.NDArray[np.int64]) -> int | None:
        times = self._calls.time[rows]
        offsets = np.array([process.wall_offset for process in self._trail.processes], np.int64)
        wall = (times + offsets[self._calls.process[rows]])[times != NO_TIME]
        return int(wall.min()) if len(wall) else None

    def _stacks(
        self, rows: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
    ) -> tuple[ObservedStack, ...]:
        attributed = self._attribution.row_of_call[rows]
        numbers, inverse = np.unique(attributed, return_inverse=True)
        totals = np.zeros(len(numbers), np.int64)
        np.add.at(totals, inverse.reshape(-1), counts[rows])
        order = np.lexsort((numbers, -totals))[:MAX_STACKS]
        return tuple(
            _stack(self._trail, self._attribution, int(numbers[at]), int(totals[at]))
            for at in order
        )


def _stack(trail: Trail, attribution: Attribution, row: int, calls: int) -> ObservedStack:
    tree = trail.stacks
    node, end = int(attribution.stack[row]), int(attribution.frame[row])
    asker = _asker(attribution, row)
    at, index = node, 0
    while at not in (end, 0):
        at, index = int(tree.parent[at]), index + 1
    return ObservedStack(
        calls=calls,
        node=node,
        frames=tuple(tree.frames(node)),
        asker=replace(asker, frame=index if at else None),
    )
