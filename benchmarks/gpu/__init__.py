"""Kernels for GPU: compiled without one, tested and timed on one."""
