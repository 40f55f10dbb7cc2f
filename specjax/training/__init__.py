"""Drafters that learn from a target's own answers."""
