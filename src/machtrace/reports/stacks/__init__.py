"""Stacks and profiles of machtrace as reports, and reports as stacks and profiles."""
