"""Declarations of manifests, compared with the calls of code and with observed ones.

Each disagreement is a finding with a witness: the stack of a call, a site in the code, or the key
of a manifest (see ``docs/audit.md``). Only Apple's required-reason categories are declared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from machtrace.audit.findings import Occurrence
from machtrace.audit.observed.coverage import Coverage
from machtrace.audit.policies import Condition, Severity
from machtrace.audit.rules import Rule, RuleKind, RuleSet
from machtrace.audit.scan import attribution as scanned
from machtrace.audit.scan.app import Declarations
from machtrace.audit.scan.image import Certainty
from machtrace.audit.scan.manifest import PREFIX
from machtrace.audit.trail.app_code import AppSite
from machtrace.frozen import dataclass
from machtrace.model.text import counted

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
    for each in coverage.sites:
        key = each.site.image.uuid, each.site.site.rule.watch
        sites[key].append(each.site)
    by_watch = {rule.watch: rule for rule in rules.rules}
    for (image, watch), places in sorted(sites.items()):
        rule = by_watch[watch]
        if not rule.required or calls.get((image, watch)):
            continue
        missing = declarations.undeclared(image, rule)
        if missing and any(each.site.certainty is not Certainty.POSSIBLE for each in places):
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
    return f"and no manifest declares {' or '.join(f'{PREFIX}{each}' for each in categories)}"


def _occurrence(place: AppSite) -> Occurrence:
    library = place.library or place.image.name
    return Occurrence(
        image=place.image.path,
        uuid=place.image.uuid,
        site=place.site,
        attribution=scanned.Attribution(library=library, evidence=scanned.Evidence.NONE, detail=""),
    )
