"""A scanned app as one HTML file: findings, a matrix of libraries and data, and the call sites.

The file needs no network. Without its script everything but the filters works.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from machtrace.audit.baseline import Comparison
from machtrace.audit.findings import AuditReport, Finding, Occurrence
from machtrace.audit.output.text import verdict
from machtrace.audit.scan.image import Certainty
from machtrace.model.text import counted
from machtrace.reports.html import shell
from machtrace.reports.html.markup import element, folded, text

_CONTROLS = (
    '<search class="tools"><label>Search <input type="search" id="search" '
    'placeholder="call, function, library (press /)" autocomplete="off"></label>'
    '<label><input type="checkbox" id="sure-only"> without possible calls</label>'
    '<output id="count" aria-live="polite"></output></search>'
)
_COLUMNS = ("Call", "Function", "Library", "Evidence", "Certainty", "Image")

_Cells = dict[tuple[str, str], list[Occurrence]]


def html_page(
    report: AuditReport, comparison: Comparison | None = None, language: str = "en"
) -> str:
    """Return the page of a report, with categories in ``language``: ``en`` or ``zh``."""
    cells: _Cells = defaultdict(list)
    for image in report.app.images:
        for site in image.scan.sites:
            occurrence = Occurrence.of(image, site)
            cells[occurrence.library, site.rule.category_in(language)].append(occurrence)
    parts = [
        element("p", text(verdict(report))),
        _problems(report),
        _findings(report, comparison),
        _matrix(cells),
        _sites(cells),
        _images(report),
    ]
    rules = report.rules
    footer = element(
        "p",
        f"Rules: {text(rules.name)}, {counted(len(rules), 'rule')}, "
        f"SHA-256 {element('code', text(rules.digest))}.",
    )
    package = __package__
    return shell.page(
        f"Audit of {report.app.path.rstrip('/').rpartition('/')[2]}",
        controls=_CONTROLS,
        main="".join(parts),
        footer=footer,
        style=shell.resource("page.css") + shell.resource("audit.css", package),
        script=shell.resource("audit.js", package),
    )


def _problems(report: AuditReport) -> str:
    if not report.app.problems:
        return ""
    listed = "".join(element("li", text(problem)) for problem in report.app.problems)
    return folded("Parts that could not be judged", element("ul", listed), class_="warnings")


def _findings(report: AuditReport, comparison: Comparison | None) -> str:
    items = [_finding(finding, comparison) for finding in report.findings]
    if comparison is not None:
        items += [
            element("p", f"<b>gone</b>: {text(gone.message)}", class_="finding gone")
            for gone in comparison.gone
        ]
    content = "".join(items) or element("p", "None.")
    return element("section", element("h2", "Findings") + content)


def _finding(finding: Finding, comparison: Comparison | None) -> str:
    state = "" if comparison is None else f" ({comparison.changes[finding.identity].value})"
    heading = f"<b>{finding.severity.value}{state}</b>: {text(finding.message)}"
    identity = element("p", f"Identity: {element('code', text(finding.identity))}")
    kind = f"finding {finding.severity.value}"
    return folded(heading, identity + _table(finding.occurrences), class_=kind)


def _table(occurrences: Iterable[Occurrence]) -> str:
    rows = "".join(map(_row, occurrences))
    if not rows:
        return ""
    head = "".join(element("th", column, scope="col") for column in _COLUMNS)
    content = element("thead", element("tr", head)) + element("tbody", rows)
    return element("table", content, class_="sites")


def _row(occurrence: Occurrence) -> str:
    site, attribution = occurrence.site, occurrence.attribution
    function = site.function or f"unnamed_{site.function_offset:x}"
    where = f"{function} + {site.offset - site.function_offset}"
    evidence = attribution.evidence.value
    if attribution.detail:
        evidence = f"{evidence}: {attribution.detail}"
    certainty = site.certainty.value
    if site.certainty is not Certainty.CERTAIN:
        certainty = f"{certainty}: {site.evidence}"
    cells = (
        element("code", text(site.rule.watch)),
        element("code", element("bdi", text(where))),
        element("bdi", text(attribution.library)),
        element("bdi", text(evidence)),
        text(certainty),
        element("bdi", text(f"{occurrence.image} + {site.offset:#x}")),
    )
    kind = "possible" if site.certainty is Certainty.POSSIBLE else None
    content = "".join(element("td", cell) for cell in cells)
    return element("tr", content, class_=kind, data_site="")


def _axes(cells: _Cells) -> tuple[list[str], list[str]]:
    return sorted({library for library, _ in cells}), sorted({data for _, data in cells})


def _identity(row: int, column: int) -> str:
    return f"cell-{row}-{column}"


def _matrix(cells: _Cells) -> str:
    if not cells:
        return ""
    libraries, categories = _axes(cells)
    head = element("th", "Library", scope="col")
    head += "".join(element("th", text(each), scope="col") for each in categories)
    rows: list[str] = []
    for row, library in enumerate(libraries):
        content = element("th", element("bdi", text(library)), scope="row")
        for column, category in enumerate(categories):
            content += element("td", _cell(cells.get((library, category), []), row, column))
        rows.append(element("tr", content))
    table = element(
        "table", element("thead", element("tr", head)) + element("tbody", "".join(rows))
    )
    region = element(
        "div", table, class_="matrix", tabindex="0", role="region", aria_label="Calls by library"
    )
    return element("section", element("h2", "Libraries and data") + region)


def _cell(occurrences: list[Occurrence], row: int, column: int) -> str:
    if not occurrences:
        return ""
    possible = sum(occurrence.site.certainty is Certainty.POSSIBLE for occurrence in occurrences)
    sure = len(occurrences) - possible
    label = str(sure) if sure else ""
    if possible:
        label += element("small", f"{possible} possible", class_="possible")
    return element("a", label, href=f"#{_identity(row, column)}")


def _sites(cells: _Cells) -> str:
    if not cells:
        return ""
    libraries, categories = _axes(cells)
    parts: list[str] = []
    for row, library in enumerate(libraries):
        for column, category in enumerate(categories):
            occurrences = cells.get((library, category))
            if occurrences:
                number = counted(len(occurrences), "site")
                heading = f"<b>{text(library)}</b>, {text(category)}: {number}"
                parts.append(
                    folded(heading, _table(occurrences), class_="cell", id=_identity(row, column))
                )
    return element("section", element("h2", "Call sites") + "".join(parts))


def _images(report: AuditReport) -> str:
    rows: list[str] = []
    for image in report.app.images:
        cells = (
            element("bdi", text(image.path)),
            element("code", text(image.uuid)),
            text(image.scan.arch),
            str(len(image.scan.sites)),
            "signed" if image.is_signed else "not signed",
        )
        rows.append(element("tr", "".join(element("td", cell) for cell in cells)))
    head = "".join(
        element("th", each, scope="col") for each in ("Image", "UUID", "CPU", "Sites", "Signature")
    )
    table = element(
        "table", element("thead", element("tr", head)) + element("tbody", "".join(rows))
    )
    summary = f"<b>{counted(len(rows), 'image')}</b>"
    return folded(summary, element("div", table, class_="wide"), class_="images")
