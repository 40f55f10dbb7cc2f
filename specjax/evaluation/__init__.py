"""Drafters measured side by side: prompts, runs, tables, reports."""
