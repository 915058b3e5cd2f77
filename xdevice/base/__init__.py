"""Devices and their spellings, dtypes, the version, and helpers for forked processes. This is the lowest of xdevice's
rooms (folders). From the rest of xdevice it imports only the error classes."""
