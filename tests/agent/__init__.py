"""Tests of the agent: C programs that carry it, and the spools that they write."""
