"""`python -m xdevice.port` has the commands `scan`, `lint` and `port`, for those who do not need the rest of
xdevice."""

import sys

import click

from .commands import lint, port, scan

main = click.Group(
    "port", commands=[scan, lint, port], help="Device code in other people's scripts."
)

if __name__ == "__main__":
    try:
        main(prog_name="python -m xdevice.port")
    except (
        OSError
    ) as error:  # Python would end with 1, which says here that a file would change
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
