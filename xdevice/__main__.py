"""`python -m xdevice` is `xdevice`."""

from .cli.main import main

main(prog_name="xdevice")
