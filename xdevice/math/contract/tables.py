"""Helps adapters to list kernels in a table, instead of writing a line for each."""

from __future__ import annotations


def named(*same: str, **others: str) -> dict[str, str]:
    """Returns the names of a framework's functions by the standard's: those of `same` are called alike, and of `others`
    the framework's names are given."""
    return {name: name for name in same} | others
