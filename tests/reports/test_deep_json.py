"""JSON with every entry, also of keys that come more than once, however its colons are spaced."""

import json

import pytest

from machtrace.reports.lenient_json import read_json


@pytest.mark.parametrize(
    "between", ["", " ", "  ", "\t", "\n", "\r\n", "\n ", "\t ", " \n", " \t "]
)
@pytest.mark.parametrize("other", ["", " ", "\n"])
def test_keys_that_come_twice_are_both_there(between, other):
    """With any white space before the colon, which may be another each time."""
    text = f'{{"a"{between}: 1, "b"{other}:{{"c"{between}:2,"c"{other}:3}}, "a"{other}: 4}}'
    document = read_json(text, 0, "text")
    assert document.value == {"a": 1, "b": {"c": 2, "c (2)": 3}, "a (2)": 4}
    assert document.end == len(text)


@pytest.mark.parametrize(
    "text",
    [
        r'{"a\":": 1, "b": "\" :", "c": ["\":", "x\\"]}',
        r'{"a\\": 1, "a\\" : "\":\":"}',
        '{"a":1,"b":"  :","c":"\\t:"}',
        '[{"a" :1},{"a":2},{"a"\n:3}]',
        '{"": {"": {"": ":"}}}',
    ],
)
def test_texts_that_look_like_keys(text):
    """They are values, and nothing is counted for what it is not."""
    value = read_json(text, 0, "text").value
    pairs = []
    json.loads(text, object_pairs_hook=lambda some: pairs.extend(some) or dict(some))
    if r"a\\" in text:
        assert list(value) == ["a\\", "a\\ (2)"]
    else:
        assert value == json.loads(text)
    assert pairs


def test_text_around_the_value_does_not_count():
    """Another document's keys are not its own."""
    text = '{"x":1}\n{"a":1,"a":2}\n{"y" \t:1}'
    assert read_json(text, 8, "text").value == {"a": 1, "a (2)": 2}
    assert read_json(text, 0, "text").value == {"x": 1}
