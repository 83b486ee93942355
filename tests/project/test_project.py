"""The documentation is true: links, modules, paths, layers, terms and error classes."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import machtrace
from machtrace import errors

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
ERRORS = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and value.__module__ == errors.__name__
}


def test_error_tree_is_drawn_whole():
    """Every class is in the drawing, under its base; nothing else is."""
    drawing = errors.__doc__ or ""
    drawn = re.findall(r"^ {4}([│├└─ ]*)(\w+Error)\b", drawing, re.MULTILINE)

    assert sorted(ERRORS) == sorted(name for _, name in drawn)
    parents: list[str] = []
    for branch, name in drawn:
        depth = len(branch) // 4
        parents[depth:] = [name]
        if depth:
            assert issubclass(ERRORS[name], ERRORS[parents[depth - 1]])


def test_every_error_has_a_remedy():
    """It is imperative, on one line, and without a full stop."""
    for value in ERRORS.values():
        assert value.remedy
        assert not value.remedy.endswith(".")


def test_public_names_load():
    """Each name in ``__all__`` loads, and no other does."""
    for name in machtrace.__all__:
        assert getattr(machtrace, name) is not None
    with pytest.raises(AttributeError):
        _ = machtrace.nothing_of_this_name


def test_no_package_hides_a_public_name():
    """Importing ``machtrace.x`` binds ``x`` on machtrace, over any function of that name."""
    parts = {path.stem for path in (ROOT / "src" / "machtrace").iterdir()}

    assert not parts & set(machtrace.__all__)


@pytest.mark.peer
def test_importing_machtrace_loads_no_library():
    """It costs no more than a few modules."""
    heavy = "{'numpy', 'rich', 'typer', 'click', 'unicorn', 'ctypes', 'asyncio'}"
    code = f"import machtrace, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_have_targets(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_named_in_the_pages_exist(page):
    """`package.module` in backquotes is a module or a package."""
    package = ROOT / "src" / "machtrace"
    for name in re.findall(r"`((?:[a-z_]+\.)+[a-z_]+)`", page.read_text()):
        first, *rest = name.split(".")
        if (package / first).is_dir() and rest[-1] not in {"py", "md", "macho", "m", "c"}:
            home = package.joinpath(first, rest[0])
            assert home.with_suffix(".py").exists() or home.is_dir(), f"{page.name}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_source_files_named_in_the_pages_exist(page):
    """`a/b.py` is below the root, the package or the page; `b.py` anywhere in the sources."""
    written = page.read_text()
    for name in re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|c|h)|[\w./-]+/)`", written):
        roots = (ROOT, ROOT / "src" / "machtrace", page.parent)
        assert any((root / name).exists() for root in roots), f"{page.name}: {name}"
    for name in re.findall(r"`(\w+\.(?:py|c))`", written):
        places = (ROOT / "src", ROOT / "native", ROOT / "tests")
        assert any(next(place.rglob(name), None) for place in places), f"{page.name}: {name}"


def test_names_in_the_architecture_are_defined_where_it_says():
    """`NAME` of (or in) `a/b.py` is at the top level of that module."""
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    pairs = re.findall(r"`(\w+)(?:\(\))?` (?:of|in) `([\w/]+\.py)`", page)

    assert len(pairs) > 10
    for name, path in pairs:
        source = (ROOT / "src" / "machtrace" / path).read_text()
        defined = rf"^(?:class |def )?{name}\b(?:\(|:| =)"
        assert re.search(defined, source, re.MULTILINE), f"{path}: {name}"


def test_layers_in_the_architecture_are_those_that_are_checked():
    """The table's rows, from the top, are import-linter's."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contracts = settings["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    table = page.split("| layer | packages |\n", 1)[1].split("\n\n", 1)[0]
    drawn = [re.findall(r"`(\w+)`", row) for row in table.splitlines()[1:]]

    assert drawn == [layer.split(" | ") for layer in layers]


def test_each_term_is_defined_once():
    """TERMINOLOGY.md is the authority, so a term has one row."""
    page = (ROOT / "docs" / "TERMINOLOGY.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE)
    terms = [term for row in rows if row != "term" for term in row.split(", ")]

    assert "image" in terms
    assert sorted(terms) == sorted(set(terms))


def test_locks_name_no_index():
    """Packages are pinned by hash; the index is the user's choice."""
    for lock in ROOT.glob("requirements/*.lock"):
        written = lock.read_text()
        assert "--hash=sha256:" in written
        assert "://" not in written


def test_regular_expressions_match_alike_in_every_python():
    """A possessive group may match wrongly before 3.11.5 (cpython issue 106052)."""
    possessive = re.compile(r"\)(?:[?*+]|\{[0-9,]+\})\+|\(\?>")
    for path in ROOT.glob("src/**/*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            is_pattern = re.search(r"""\br[f]?["']|re\.compile""", line)
            assert not (is_pattern and possessive.search(line)), f"{path.name}: {line}"
