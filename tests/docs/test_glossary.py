"""The words of CONTRIBUTING.md are the only ones for their things: no file and no hook has one of those beside them.
Names of values say what they are, and one name stands for one class and one folder."""

from __future__ import annotations

import ast
import re
import runpy
from collections import Counter

import pytest
from helpers.environment import ROOT

from xdevice.testing.suite.capabilities import HOOKS

SECTION = (
    (ROOT / "CONTRIBUTING.md")
    .read_text(encoding="utf-8")
    .partition("## The words")[2]
    .partition("\n## ")[0]
)
ROWS = re.findall(r"^\| ([^|]+) \| [^|]+ \|([^|]*)\|$", SECTION, re.MULTILINE)[1:]
AVOIDED = {word for _, avoided in ROWS for word in re.split(r",\s*", avoided.strip()) if word}

UNTELLING = {"asked", "found", "given", "held", "known", "made", "seen", "told"}
"""They say how a value came here, not what it is."""
MEANT_OTHERWISE = {"layer", "settings", "sharing"}
"""Not words for a room, an operation and a conversion; but a network has layers, a layer has settings, and a sample of
the suite is of two models that share a tensor."""
FORBIDDEN = UNTELLING | AVOIDED - MEANT_OTHERWISE

CEILINGS = {
    "cli": 0,
    "device layer": 0,
    "distributed": 0,
    "math": 0,
    "performance": 0,
    "port": 0,
    "testing": 0,
    "twins": 0,
    "virtual": 0,
}
"""How many values of each product have a forbidden name. Whoever renames some lowers the number; it is never raised."""

SAME_CLASSES = {
    "Block",
    "Call",
    "Calls",
    "Rule",
}
"""The names that several classes of `xdevice/` have. Whoever renames one strikes it off; nothing is added."""
# that of a product adds to the contract of the device layer, as `testing/contract` does
SAME_ROOMS = {"contract"}

owner = runpy.run_path(str(ROOT / ".ci" / "budget"))["owner"]


def sources(*folders):
    return {
        path: path.read_text(encoding="utf-8")
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
    }


GIVE_A_NAME = {
    ast.Name: "id",
    ast.Attribute: "attr",
    ast.arg: "arg",
    ast.alias: "asname",
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
}
"""The nodes of a syntax tree that can name a value, and where each has the name."""


def names_of_values(text):
    """Every place where a local, an attribute, an argument or a function gets its name."""
    for node in ast.walk(ast.parse(text)):
        is_read = not isinstance(getattr(node, "ctx", None), (ast.Store, type(None)))
        if type(node) in GIVE_A_NAME and not is_read:
            yield getattr(node, GIVE_A_NAME[type(node)])


def forbidden_names(texts):
    """How often each product, as `.ci/budget` cuts them, gives a forbidden name."""
    counts = Counter()
    for path, text in texts.items():
        counts[owner(path)] += sum(name in FORBIDDEN for name in names_of_values(text))
    return counts


def repeated_classes(texts):
    classes = Counter(
        node.name
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    )
    return {name for name, count in classes.items() if count > 1}


def repeated_rooms(folders):
    rooms = Counter(folder.name for folder in folders)
    return {name for name, count in rooms.items() if count > 1}


def test_the_glossary_is_short():
    words = [word for row, _ in ROWS for word in row.split(", ")]
    assert 20 <= len(words) <= 40
    assert not AVOIDED & set(words)
    assert MEANT_OTHERWISE < AVOIDED


def test_no_file_and_no_method_of_the_contract_has_another_word():
    files = sources("xdevice", "backends")
    assert len(files) > 200
    assert {path.stem for path in files} & AVOIDED == set()
    assert HOOKS.keys() & AVOIDED == set()


def test_no_product_has_more_values_without_a_name_of_their_own():
    counts = forbidden_names(sources("xdevice", "backends"))
    assert counts.keys() == CEILINGS.keys()
    over = {
        product: (count, CEILINGS[product])
        for product, count in counts.items()
        if count > CEILINGS[product]
    }
    assert not over, f"by product, the values with a forbidden name, and the ceiling: {over}"


@pytest.mark.parametrize(
    "text",
    [
        "found = 1",
        "def f():\n    for found in []: pass",
        "def f(found): pass",
        "lambda *found: 0",
        "def found(): pass",
        "class A:\n    found: int",
        "a.found = 1",
        "a, (b, *found) = 1",
        "[0 for found in []]",
        "(found := 1)",
        "with a as found: pass",
        "try: pass\nexcept E as found: pass",
        "import a as found",
        "match a:\n    case [*found]: pass",
        "match a:\n    case 1 as found: pass",
    ],
)
def test_each_way_to_name_a_value_is_counted(text):
    path = ROOT / "backends" / "xdevice_torch" / "virtual" / "new.py"
    assert forbidden_names({path: text}) == {"virtual": 1}
    assert forbidden_names({path: text.replace("found", "devices")}) == {"virtual": 0}
    assert forbidden_names({path: text.replace("found", "provider")}) == {"virtual": 1}


def test_no_two_classes_have_one_name():
    repeated = repeated_classes(sources("xdevice").values())
    assert not repeated - SAME_CLASSES, "a class has the name of another"
    assert not SAME_CLASSES - repeated, (
        "these are one class each by now: strike them off SAME_CLASSES"
    )
    assert repeated_classes(
        ["class A: pass", "def f():\n    class A: pass", "class B: pass"]
    ) == {"A"}


def test_no_two_rooms_have_one_name():
    rooms = [
        folder
        for folder in (ROOT / "xdevice").rglob("*")
        if folder.is_dir() and list(folder.glob("*.py"))
    ]
    assert len(rooms) > 20
    assert repeated_rooms(rooms) == SAME_ROOMS
    assert repeated_rooms(
        [ROOT / "math" / "files", ROOT / "twins" / "files", ROOT / "port"]
    ) == {"files"}


def test_the_files_of_the_adapters_are_those_of_the_contract():
    """The same capability has the same name in all adapters, which the contract has too, or the list of an adapter's
    files in the docs."""
    told = set(
        re.findall(
            r"`(\w+)\.py`", (ROOT / "docs/reference/adapters.md").read_text(encoding="utf-8")
        )
    )
    contract = {path.stem for path in (ROOT / "xdevice" / "contract").glob("*.py")}
    stems = [path.stem for path in (ROOT / "backends").glob("*/*.py")]
    assert {stem for stem in stems if stems.count(stem) > 1} - told - contract == set()
