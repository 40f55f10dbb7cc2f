"""Builds and registers the native code of ops that have some."""
