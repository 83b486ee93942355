"""Fixtures of tests, fuzz targets and benchmarks; there are no tests in it."""
