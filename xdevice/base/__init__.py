"""Devices and their spellings, dtypes, the version, and helpers for forked processes. This is the lowest room of
xdevice, and imports nothing else of xdevice but its error classes."""
