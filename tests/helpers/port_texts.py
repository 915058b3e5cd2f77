"""What port makes of a text, for the tests of `xdevice.port`."""

from __future__ import annotations

from pathlib import Path

from xdevice.port import engine, sources
from xdevice.port.words import DEFAULT_GOAL, Goal


def examined(*texts, only="proven", names=("main.py",), goal=DEFAULT_GOAL):
    """Texts as the files of one project; without names the first is main.py."""
    raws = [text if isinstance(text, bytes) else text.encode() for text in texts]
    made = engine.Examined(Path(), only, goal=goal)
    made.sources = [sources.parse(raw, name) for raw, name in zip(raws, names, strict=True)]
    engine.judge(made)
    return made


def ported(text, only="proven", name="main.py"):
    """The text after port, as text."""
    made = examined(text, only=only, names=(name,))
    return made.ported(made.sources[0]).decode(made.sources[0].encoding)


def ported_to(target, text, only="proven", minimum=None):
    """The text after `port --to target --torch-minimum minimum`."""
    made = examined(text, only=only, goal=Goal(target, minimum))
    return made.ported(made.sources[0]).decode(made.sources[0].encoding)


def body(text, only="proven"):
    """As `ported`, without the two lines for the import."""
    return ported(text, only).replace('import xdevice\n\nxdevice.set_backend("torch")\n', "")


def verdicts(text, only="proven", name="main.py"):
    """(idiom, verdict, code) of each site."""
    return [
        (site.idiom, site.verdict, site.code)
        for site in examined(text, only=only, names=(name,)).sites
    ]
