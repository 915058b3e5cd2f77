"""Finds, loads and selects backends, and implements the `with` blocks that select a backend or a device."""
