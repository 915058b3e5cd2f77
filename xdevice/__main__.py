"""`python -m xdevice` is `xdevice`."""

from .cli import main

main(prog_name="xdevice")
