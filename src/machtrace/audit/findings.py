"""Findings: where what an app does and what it declares do not agree.

The identity of a finding has no address and no version, so that it is the same for the next build.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum

from machtrace.audit.policies import Condition, Severity
from machtrace.audit.rules import Rule, RuleKind, RuleSet
from machtrace.audit.scan.app import AppScan, Bundle, ScannedImage
from machtrace.audit.scan.attribution import Attribution
from machtrace.audit.scan.image import Certainty, Site
from machtrace.audit.scan.manifest import LISTED_SDKS, MANIFEST, PREFIX, Manifest
from machtrace.frozen import dataclass

_APPS = (".app", ".appex", ".watchapp")


class FindingKind(Enum):
    """The disagreement."""

    UNDECLARED = "undeclared"
    """Code calls a required-reason API that no manifest declares."""
    INVALID_MANIFEST = "invalid-manifest"
    NAME_ONLY = "name-only"
    """A required-reason API's name occurs, as Apple's check of names would find it; no code is
    known to call it."""
    DECLARED_IN_VAIN = "declared-in-vain"
    USAGE_MISSING = "usage-missing"
    """Code calls what needs a purpose in Info.plist, and there is none."""
    SDK_MANIFEST = "sdk-manifest"
    """An SDK on Apple's list has no manifest."""
    SDK_SIGNATURE = "sdk-signature"
    """An SDK on Apple's list is not signed."""
    OUTSIDE_SANDBOX = "outside-sandbox"
    """Code names a file outside of the app's container."""
    NOT_LISTED = "not-listed"
    """A library that is not among those allowed calls what is watched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """A site, in the image and the library that it belongs to."""

    image: str
    """The image's path in the app."""
    uuid: str
    site: Site
    attribution: Attribution

    @classmethod
    def of(cls, image: ScannedImage, site: Site) -> Occurrence:
        """Return the occurrence of a site of an image."""
        attribution = image.attribution(site)
        return cls(image=image.path, uuid=image.uuid, site=site, attribution=attribution)

    @property
    def library(self) -> str:
        """The library whose code it is."""
        return self.attribution.library


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One disagreement."""

    kind: FindingKind
    severity: Severity
    library: str
    """The bundle or image that it concerns."""
    subject: str
    """The category, key, file or rule that it concerns."""
    message: str
    """A sentence."""
    rules: tuple[Rule, ...] = ()
    occurrences: tuple[Occurrence, ...] = ()

    @property
    def identity(self) -> str:
        """The same for the same finding in another build."""
        return f"{self.kind.value}:{self.library}:{self.subject}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """A scanned app, judged."""

    app: AppScan
    rules: RuleSet
    findings: tuple[Finding, ...]

    @property
    def faults(self) -> int:
        """The number of findings that are faults."""
        return sum(finding.severity is Severity.FAULT for finding in self.findings)


def judge(app: AppScan, rules: RuleSet) -> AuditReport:
    """Compare what the images call with what the bundles declare."""
    findings = [
        *_required_reasons(app, rules),
        *_not_listed(app, rules),
        *_manifests(app),
        *_usage(app),
        *_listed_sdks(app),
        *_files(app),
    ]
    order = list(Severity)
    findings.sort(key=lambda each: (order.index(each.severity), each.library, each.identity))
    return AuditReport(app=app, rules=rules, findings=tuple(findings))


def _by_bundle(app: AppScan) -> Mapping[str, list[ScannedImage]]:
    by_bundle: dict[str, list[ScannedImage]] = defaultdict(list)
    for image in app.images:
        by_bundle[image.unit].append(image)
    return by_bundle


def _occurrences(images: Iterable[ScannedImage], category: str) -> list[Occurrence]:
    return [
        Occurrence.of(image, site)
        for image in images
        for site in image.scan.sites
        if category in site.rule.required
    ]


def _required_reasons(app: AppScan, rules: RuleSet) -> Iterator[Finding]:
    """Compare required-reason APIs with manifests, bundle by bundle."""
    categories = sorted({name for rule in rules.rules for name in rule.required})
    by_watch = {rule.watch: rule for rule in rules.rules}
    severity = rules.severity(Condition.UNDECLARED, Severity.FAULT)
    for path, images in sorted(_by_bundle(app).items()):
        bundle = app.bundles.get(path)
        declared = _declared(bundle)
        library = images[0].library
        for category in categories:
            places = _occurrences(images, category)
            sure = [place for place in places if place.site.certainty is not Certainty.POSSIBLE]
            named = _named(images, by_watch, category)
            if category in declared:
                if not places and not named:
                    yield _in_vain(library, category)
            elif sure and severity is not None:
                yield replace(_undeclared(library, category, sure, bundle), severity=severity)
            elif named:
                yield _name_only(library, category, named, places)


def _not_listed(app: AppScan, rules: RuleSet) -> Iterator[Finding]:
    """Compare the libraries that call what is watched with those that are allowed to."""
    severity = rules.severity(Condition.NOT_LISTED, Severity.FAULT)
    if not rules.allowed or severity is None:
        return
    by_library: dict[tuple[str, str], list[Occurrence]] = defaultdict(list)
    for image in app.images:
        for site in image.scan.sites:
            library = image.attribution(site).library
            if library not in rules.allowed and site.certainty is not Certainty.POSSIBLE:
                by_library[library, site.rule.category].append(Occurrence.of(image, site))
    for (library, category), occurrences in sorted(by_library.items()):
        yield Finding(
            kind=FindingKind.NOT_LISTED,
            severity=severity,
            library=library,
            subject=category,
            message=f"{library} calls {_listed(occurrences)}, and is not an allowed library",
            rules=_rules(occurrences),
            occurrences=tuple(occurrences),
        )


def _declared(bundle: Bundle | None) -> frozenset[str]:
    manifests: Sequence[Manifest] = () if bundle is None else bundle.manifests
    return frozenset(category for manifest in manifests for category in manifest.reasons)


def _named(
    images: Iterable[ScannedImage], rules: Mapping[str, Rule], category: str
) -> list[tuple[Rule, tuple[str, ...]]]:
    named: dict[str, tuple[Rule, tuple[str, ...]]] = {}
    for image in images:
        for watch, ways in image.scan.names.items():
            if category in rules[watch].required:
                named[watch] = (rules[watch], ways)
    return list(named.values())


def _undeclared(
    library: str, category: str, occurrences: list[Occurrence], bundle: Bundle | None
) -> Finding:
    where = "its manifest does not" if bundle and bundle.manifests else "it has no manifest to"
    return Finding(
        kind=FindingKind.UNDECLARED,
        severity=Severity.FAULT,
        library=library,
        subject=category,
        message=f"{library} calls {_listed(occurrences)}, and {where} declare {PREFIX}{category}",
        rules=_rules(occurrences),
        occurrences=tuple(occurrences),
    )


def _rules(occurrences: Iterable[Occurrence]) -> tuple[Rule, ...]:
    return tuple(
        {occurrence.site.rule.watch: occurrence.site.rule for occurrence in occurrences}.values()
    )


def _listed(occurrences: Iterable[Occurrence]) -> str:
    return ", ".join(sorted(rule.watch for rule in _rules(occurrences)))


def _name_only(
    library: str,
    category: str,
    named: list[tuple[Rule, tuple[str, ...]]],
    places: list[Occurrence],
) -> Finding:
    names = ", ".join(f"{rule.watch} ({', '.join(ways)})" for rule, ways in named)
    return Finding(
        kind=FindingKind.NAME_ONLY,
        severity=Severity.WARNING,
        library=library,
        subject=category,
        message=f"{library} has {names}: a check of names reports {PREFIX}{category}; "
        + ("their receivers are unknown" if places else "no code that calls it is known"),
        rules=tuple(rule for rule, _ in named),
        occurrences=tuple(places),
    )


def _in_vain(library: str, category: str) -> Finding:
    return Finding(
        kind=FindingKind.DECLARED_IN_VAIN,
        severity=Severity.NOTE,
        library=library,
        subject=category,
        message=f"{library} declares {PREFIX}{category}, and nothing in it has such a name",
    )


def _manifests(app: AppScan) -> Iterator[Finding]:
    for bundle in app.bundles.values():
        for manifest in bundle.manifests:
            if manifest.faults:
                yield Finding(
                    kind=FindingKind.INVALID_MANIFEST,
                    severity=Severity.FAULT,
                    library=bundle.name,
                    subject=manifest.path.removeprefix(f"{bundle.path}/"),
                    message=f"{manifest.path}: {'; '.join(manifest.faults)}",
                )


def _usage(app: AppScan) -> Iterator[Finding]:
    """Compare what needs a purpose with the Info.plist of the app around it."""
    hosts = [bundle for bundle in app.bundles.values() if bundle.path.lower().endswith(_APPS)]
    for host in hosts:
        by_key: dict[str, list[Occurrence]] = defaultdict(list)
        for image in app.images:
            if _host(image.bundle) != host.path:
                continue
            for site in image.scan.sites:
                key = site.rule.usage
                sure = site.certainty is not Certainty.POSSIBLE
                if key.endswith("UsageDescription") and sure and key not in host.information:
                    by_key[key].append(Occurrence.of(image, site))
        for key, occurrences in sorted(by_key.items()):
            yield Finding(
                kind=FindingKind.USAGE_MISSING,
                severity=Severity.FAULT,
                library=host.name,
                subject=key,
                message=f"{_listed(occurrences)} is called, and {host.name} has no {key}",
                rules=_rules(occurrences),
                occurrences=tuple(occurrences),
            )


def _host(path: str) -> str:
    """Return the app or extension that a bundle is in, or is."""
    parts = path.split("/")
    for end in range(len(parts), 0, -1):
        if parts[end - 1].lower().endswith(_APPS):
            return "/".join(parts[:end])
    return ""


def _listed_sdks(app: AppScan) -> Iterator[Finding]:
    for image in app.images:
        bundle = app.bundle_of(image)
        library = image.library
        if library not in LISTED_SDKS or not image.bundle.endswith(".framework"):
            continue
        if bundle is None or not bundle.manifests:
            yield Finding(
                kind=FindingKind.SDK_MANIFEST,
                severity=Severity.FAULT,
                library=library,
                subject=MANIFEST,
                message=f"{library} is on Apple's list of SDKs, and has no {MANIFEST}",
            )
        if not image.is_signed:
            yield Finding(
                kind=FindingKind.SDK_SIGNATURE,
                severity=Severity.WARNING,
                library=library,
                subject="signature",
                message=f"{library} is on Apple's list of SDKs, and is not signed",
            )


def _files(app: AppScan) -> Iterator[Finding]:
    for image in app.images:
        by_rule: dict[str, list[Occurrence]] = defaultdict(list)
        for site in image.scan.sites:
            if site.rule.kind is RuleKind.FILE:
                by_rule[site.rule.watch].append(Occurrence.of(image, site))
        for watch, occurrences in by_rule.items():
            yield Finding(
                kind=FindingKind.OUTSIDE_SANDBOX,
                severity=Severity.WARNING,
                library=image.library,
                subject=watch,
                message=f"{image.library} uses {watch}",
                rules=_rules(occurrences),
                occurrences=tuple(occurrences),
            )


def needed_categories(report: AuditReport) -> tuple[Bundle | None, tuple[str, ...]]:
    """Return the outermost bundle, and the required-reason categories that its own code uses.

    Calls that are merely possible do not count.
    """
    bundles = report.app.bundles
    main = min(bundles, key=lambda path: (path.count("/"), path), default="")
    categories = {
        category
        for image in report.app.images
        for site in image.scan.sites
        for category in site.rule.required
        if image.bundle == main and site.certainty is not Certainty.POSSIBLE
    }
    return bundles.get(main), tuple(sorted(categories))
