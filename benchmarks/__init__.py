"""Measurements: one module a question, run as ``python -m benchmarks.NAME``."""
