"""Files of rules: what is read, and what is refused because no call could match it."""

import pytest

from machtrace.audit.rules import RuleKind, load_rules
from machtrace.errors import RulesError


@pytest.fixture
def written(tmp_path):
    def write(text, name="rules.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_the_built_in_set_has_a_category_in_two_languages_for_each_rule():
    rules = load_rules()
    assert len(rules) == 371
    assert all(rule.category and rule.zh for rule in rules.rules)
    assert {rule.kind for rule in rules.rules} == set(RuleKind)


@pytest.mark.parametrize(
    ("name", "watch"),
    [
        ("_stat", "stat"),
        ("_stat$INODE64", "stat"),
        ("_fstat", "fstat"),
        ("_fstatus", None),
        ("stat", None),
        ("__stat", None),
        ("_$s8StoreKit11TransactionV19currentEntitlementsAC12TransactionsVvgZ",
         "Transaction.currentEntitlements"),
    ],
)  # fmt: skip
def test_symbols_match_as_a_whole(name, watch):
    rule = load_rules().of_symbol(name)
    assert (rule and rule.watch) == watch


def test_a_file_may_include_the_built_in_set_and_replace_its_rules(written):
    path = written(
        'schema = 1\nname = "ours"\ninclude = ["privacy"]\n'
        'rules = [{ watch = "stat", category = "Files" }, { watch = "own_call", category = "Own" }]'
    )
    rules = load_rules(path)
    assert rules.name == "ours"
    assert len(rules) == 372
    assert rules.of_symbol("_stat").category == "Files"
    assert rules.of_symbol("_own_call").kind is RuleKind.C


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("rules = 3", "schema None"),
        ("schema = 1", "no rules"),
        ("schema = 1\nrules = [3]", "array of tables"),
        ('schema = 1\nrules = [{ watch = "f" }]', "category is missing"),
        ('schema = 1\nrules = [{ category = "f" }]', "watches nothing"),
        ('schema = 1\nrules = [{ watch = "- setURL", category = "x" }]', "not the name"),
        ('schema = 1\nrules = [{ watch = "-[A]", category = "x" }]', "not a method"),
        ('schema = 1\nrules = [{ watch = "f", category = "x", whatch = "y" }]', "'whatch'"),
        ('schema = 1\nrules = [{ watch = "f", category = "x", rate = "often" }]', "'often'"),
        ('schema = 1\nrules = [{ watch = "f", category = "x", required = "x" }]', "strings"),
        ('schema = 1\nrules = [{ watch = "f", category = "x" }, { watch = "f", category = "x" }]',
         "several rules"),
        ('schema = 1\nrules = [{ watch = "T", kind = "swift", category = "x" }]', "neither"),
        ('schema = 1\nname = 3\nrules = [{ watch = "f", category = "x" }]', "name"),
        ('schema = 1\ninclude = ["rules.toml"]', "includes itself"),
        ("schema = \x01", "not TOML"),
    ],
)  # fmt: skip
def test_what_no_call_can_match_is_refused(written, text, fact):
    with pytest.raises(RulesError, match=fact):
        load_rules(written(text))
