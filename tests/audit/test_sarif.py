"""SARIF of `audit scan` and `audit run`: OASIS' schema, and what GitHub's code scanning requires.

``make published-files`` fetches the schema.
"""

import json

import jsonschema
import pytest
from click.testing import CliRunner

from machtrace.cli.application import app
from machtrace.targets.emulator.audited import APP
from tests.support.published.files import DOCUMENTS, FETCHED, published_files

(SCHEMA,) = published_files(DOCUMENTS)
COMMANDS = {"scan": ("scan", str(APP)), "run": ("run", "emulated:demo")}
pytestmark = pytest.mark.emulated


def document(*words):
    result = CliRunner().invoke(app, ["audit", *words], standalone_mode=False)
    assert result.exception is None, result.exception
    return json.loads(result.stdout)


@pytest.fixture(scope="module", params=COMMANDS)
def documents(request, tmp_path_factory):
    """The findings of a command: alone, and beside a baseline that lacks some of them."""
    words = COMMANDS[request.param]
    last = document(*words, "--format", "json")
    last["findings"] = last["findings"][1:]
    baseline = tmp_path_factory.mktemp("baseline") / "last.json"
    baseline.write_text(json.dumps(last))
    compared = ("--baseline", str(baseline), "--format", "sarif")
    return document(*words, "--format", "sarif"), document(*words, *compared)


def test_they_follow_the_schema(documents):
    path = SCHEMA.path(FETCHED)
    if not SCHEMA.is_fetched():
        pytest.skip("not fetched: make published-files")
    schema = json.loads(path.read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)
    checked = validator(schema, format_checker=validator.FORMAT_CHECKER)
    with pytest.raises(jsonschema.ValidationError):
        checked.validate({"version": "2.1.0"})
    for each in documents:
        checked.validate(each)


def test_each_result_has_what_code_scanning_requires(documents):
    """A rule that is described, a text, a level, a file with a line, and a fingerprint."""
    for each in documents:
        (run,) = each["runs"]
        rules = run["tool"]["driver"]["rules"]
        assert run["results"]
        for result in run["results"]:
            assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
            assert rules[result["ruleIndex"]]["shortDescription"]["text"]
            assert result["message"]["text"]
            assert result["level"] in ("error", "warning", "note")
            (location,) = result["locations"]
            physical = location["physicalLocation"]
            uri = physical["artifactLocation"]["uri"]
            assert uri
            assert not uri.startswith("/")
            assert physical["region"]["startLine"] == 1
        prints = [tuple(result["partialFingerprints"].values()) for result in run["results"]]
        assert len(set(prints)) == len(prints)
        assert all(len(text) == 1 and text[0] for text in prints)


def test_results_of_a_baseline_have_a_state(documents):
    alone, compared = (each["runs"][0]["results"] for each in documents)
    assert all("baselineState" not in result for result in alone)
    states = [result["baselineState"] for result in compared]
    assert sorted(set(states)) == ["new", "unchanged"]
    assert states.count("new") == 1
