"""Grouping rules: a file of lines in Sentry's syntax that adjusts fingerprints."""

from machtrace.reports.analysis.grouping_rules.application import (
    AppliedRules,
    Limit,
    Verdict,
    apply,
    resolved,
)
from machtrace.reports.analysis.grouping_rules.of_reports import raised_of, rule_frame
from machtrace.reports.analysis.grouping_rules.parser import builtin_rules, parse_rules
from machtrace.reports.analysis.grouping_rules.rules import (
    FingerprintRule,
    GroupingRules,
    Raised,
    RuleFrame,
    RuleLine,
    StackRule,
)

__all__ = [
    "AppliedRules",
    "FingerprintRule",
    "GroupingRules",
    "Limit",
    "Raised",
    "RuleFrame",
    "RuleLine",
    "StackRule",
    "Verdict",
    "apply",
    "builtin_rules",
    "parse_rules",
    "raised_of",
    "resolved",
    "rule_frame",
]
