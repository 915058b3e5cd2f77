"""The docstring of a public name is a contract and an example: what is longer is a page of the docs, with a link."""

from __future__ import annotations

import inspect
import re

from helpers.environment import ROOT
from helpers.faces import faces, names_of

import xdevice
import xdevice.contract
import xdevice.errors
import xdevice.testing
from xdevice.contract.primitives import Primitives
from xdevice.testing.suite.capabilities import CAPABILITIES

LINES = 25
"""At most so many, without the rows of a table that says what each backend does."""
TABLE = re.compile(r"(^ *\|.*\n)+", re.MULTILINE)
BACKEND = re.compile(r"^ *\| (torch|tensorflow|paddle|mxnet|jax|numpy)\b", re.MULTILINE)
MODULES = {
    name: getattr(xdevice, name) for name in ("nn", "optim", "random", "native", "testing")
}
"""The public modules, whose own names are public too."""


def public():
    """Each public name with what it stands for; those of a class are its own, and those of its bases in xdevice."""
    for face in faces():
        for name, value in names_of(face).items():
            yield from documented(f"{face.__name__}.{name}", value)
    for public_name, module in MODULES.items():
        yield from documented(f"xdevice.{public_name}", module)
        for name in getattr(module, "__all__", dir(module)):
            if (
                getattr(getattr(module, name), "__module__", "").startswith(module.__name__)
                and name[0] != "_"
            ):
                yield from documented(f"xdevice.{public_name}.{name}", getattr(module, name))
    for capability in (Primitives, *CAPABILITIES):
        yield from documented(capability.__name__, capability)


def documented(name, thing):
    if not getattr(thing, "__module__", thing.__name__).startswith("xdevice"):
        return  # such as a class of warnings' own base
    yield name, inspect.getdoc(thing) or ""
    if inspect.isclass(thing):
        for part, value in vars(thing).items():
            value = getattr(value, "__func__", getattr(value, "fget", value))
            if part[0] != "_" and inspect.isfunction(value):
                yield f"{name}.{part}", inspect.getdoc(value) or ""


TEXTS = dict(public())


def test_methods_modules_and_the_contract_are_among_the_public_names():
    assert {
        "xdevice.accelerator.Stream.wait",
        "xdevice.distributed.World.all_reduce",
        "xdevice.nn.conv2d",
        "xdevice.random",
    } <= set(TEXTS)
    assert {"Primitives.to_numpy", "Graphs"} <= set(TEXTS)


def test_a_public_docstring_is_short():
    counts = {name: lines(text) for name, text in TEXTS.items()}
    assert {name: count for name, count in counts.items() if count > LINES} == {}


def lines(text):
    """Of a docstring, without a table in which a row begins with a backend's name."""
    return len(
        TABLE.sub(lambda rows: "" if BACKEND.search(rows[0]) else rows[0], text + "\n")
        .strip()
        .splitlines()
    )


def test_the_pages_that_a_docstring_names_are_there():
    named = {page for text in TEXTS.values() for page in re.findall(r"\bdocs/[\w/]+\.md", text)}
    assert len(named) > 9
    assert [page for page in named if not (ROOT / page).exists()] == []
