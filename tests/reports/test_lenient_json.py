"""JSON that no ordinary reader takes: too deep, cut off, or never right."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.reports.lenient_json import MAX_DEPTH, read_broken, read_json
from machtrace.reports.source import ReportSource

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(VALUES) | st.dictionaries(st.text(), VALUES), st.sampled_from([None, 1]))
@settings(max_examples=40, deadline=None)
def test_valid_json_is_read_as_python_reads_it(value: object, indent: int | None) -> None:
    """The tolerant reader is no other reader."""
    text = json.dumps(value, indent=indent)
    document = read_broken(text, 0)
    assert (document.value, document.warnings) == (json.loads(text), ())
    assert document.end == len(text)


@pytest.mark.parametrize(
    ("text", "value", "warning"),
    [
        ('{"a": [1, 2', {"a": [1, 2]}, "the text ends"),
        ('{"a": "it is cut', {"a": "it is cut"}, "a string does not end"),
        ('{"a": , "b": 1}', {"a": None, "b": 1}, "a key without a value"),
        ('{"a": 0x10, "b": nan}', {"a": "0x10", "b": "nan"}, "is not a value, stored as text"),
        ('{"a": [1, 2}, "b": 3}', {"a": [1, 2]}, "was not closed"),
        ('{"a": 1, "a": 2, "a": 3, "b": }', {"a": 1, "a (2)": 2, "a (3)": 3, "b": None}, ""),
        ('{"a" 1 "b" 2}', {"a": 1, "b": 2}, ""),
        ('{"a": 01, "b": -, "c": 1}', {"a": 1, "b": "-", "c": 1}, "is not a value"),
    ],
)
def test_recognisable_values_are_preserved(text: str, value: object, warning: str) -> None:
    """Values are repaired if the intention is clear, with a warning."""
    document = read_broken(text, 0)
    assert document.value == value
    assert any(warning in one for one in document.warnings) or not warning


def test_a_number_beyond_all_bounds_stays_text() -> None:
    """JSON has no infinity, and Python reads no whole number of any length."""
    document = read_broken('{"a": 1e999, "b": ' + "9" * 5000 + ', "c": 1', 0)
    assert document.value == {"a": "1e999", "b": "9" * 5000, "c": 1}


@pytest.mark.parametrize("depth", [500, 20_000])
def test_stacks_may_be_of_any_depth(depth: int) -> None:
    """A stack overflow is a frame for each level: 512 of them are common."""
    text = '{"subFrames":[{"n":1,"subFrames":[' * depth + "]}" * 2 * depth
    value = read_json(text, 0, "deep").value
    levels = 0
    while isinstance(value, dict) and value["subFrames"]:
        inner = value["subFrames"]
        assert isinstance(inner, list)
        value = inner[0]
        levels += 1
    assert levels == 2 * depth - 1


def test_other_deep_nesting_is_stored_as_text() -> None:
    """Thus recursive code can walk a report's details."""
    text = "[" * 9000 + "]" * 9000
    document = read_json(text, 0, "deep")
    value, depth = document.value, 0
    while isinstance(value, list):
        value, depth = value[0], depth + 1
    assert depth == MAX_DEPTH + 1
    assert value == "[" * (9000 - depth) + "]" * (9000 - depth)
    assert "stored as text" in document.warnings[0]


def test_half_a_pair_before_a_byte_that_is_no_text_makes_no_pair() -> None:
    """Else it were another character once it is written and read again."""
    (document,) = ReportSource("bytes", b'{"a": "x\\ud800\x9a", "b": "\\ud83d\\ude00"}').documents
    assert document.value == {"a": "x\\ud800\udc9a", "b": "\U0001f600"}
    assert json.loads(json.dumps(document.value)) == document.value
