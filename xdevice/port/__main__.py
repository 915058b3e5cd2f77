"""`python -m xdevice.port`: the commands `scan`, `lint` and `port`, without importing the rest
of xdevice."""

import sys

import click

from .commands import lint, port, scan

main = click.Group(
    "port", commands=[scan, lint, port], help="Device code in other people's scripts."
)

if __name__ == "__main__":
    try:
        main(prog_name="python -m xdevice.port")
    # Python would exit with 1 after an uncaught error, but here that code means that a file
    # would change
    except OSError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
