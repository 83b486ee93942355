"""Analyses of reports: groups of one problem, function costs, waits, differences."""
