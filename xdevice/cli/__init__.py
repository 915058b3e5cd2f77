"""The command line, `xdevice` or `python -m xdevice`."""
