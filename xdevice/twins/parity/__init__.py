"""Checks whether two programs compute the same numbers: records values, compares them, and writes reports."""
