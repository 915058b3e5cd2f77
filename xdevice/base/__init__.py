"""The lowest layer of xdevice, which imports only its error classes: devices and their spellings, dtypes, the version,
and helpers for forked processes."""
