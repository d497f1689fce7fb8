"""Benchmarks of hookcore's costs. Run one with `python -m benchmarks.<name>`; these are not tests."""
