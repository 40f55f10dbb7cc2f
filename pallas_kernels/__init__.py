"""Kernels behind one api.py per op; this package knows nothing of specjax."""
