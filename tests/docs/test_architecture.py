"""What the page on the architecture and the map of CONTRIBUTING.md say is so: files, names, the order of the calls."""

from __future__ import annotations

import re
import sys
from importlib import import_module

import pytest
from helpers.environment import ROOT
from helpers.faces import faces, names_of

import xdevice
from xdevice.base import devices
from xdevice.containers import trees

try:
    import tomllib
except ImportError:  # Python 3.10
    tomllib = None

PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TRAVEL = (
    "tensors.verbs.to_device",
    "base.devices.parse",
    "tensors.contents.transfer",
    "containers.trees.flatten",
    "containers.ways.way_into",
    "core.registry.owner_and_kind",
    "tensors.contents._tensors_to_move",
    "contract.primitives.require",
    "contract.primitives.move_all",
    "xdevice_jax.move",
    "containers.trees.rebuild",
)
"""The calls of the drawing and of the steps below it."""


def test_to_device_travels_as_the_page_says():
    backend = xdevice.backend("jax")
    if len(backend.devices()) < 2:
        backend.samples().other_device()
    place = next((device for device in backend.devices() if device is not xdevice.cpu()), None)
    if place is None:
        pytest.skip("JAX was started with one device")
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    code = code.replace("str(xdevice.try_gpu(1))", repr(str(place)))
    names = {}
    # a text that has been seen before is not parsed again
    devices.by_spelling.pop(str(place), None)
    trees.forget()  # a type that has been met before is not asked for its way again
    with xdevice.use_backend(backend):
        called = calls_of(lambda: exec(code, names))
    assert not set(TRAVEL) - set(called)
    moved = names["moved"]
    assert moved["x"] is moved["more"][0]
    assert moved["label"] == "cat"
    assert xdevice.device_of(moved) is place


def calls_of(function):
    """Module and name of every function of ours that is called, a class for its `__init__`."""
    called = []

    def notice(frame, event, _):
        module = frame.f_globals.get("__name__", "")
        if event != "call" or not module.startswith("xdevice"):
            return
        name = frame.f_code.co_name
        if name == "__init__":
            name = type(frame.f_locals["self"]).__name__
        called.append(f"{module.removeprefix('xdevice.')}.{name}")

    before = sys.getprofile()
    sys.setprofile(notice)
    try:
        function()
    finally:
        sys.setprofile(before)
    return called


@pytest.mark.parametrize("text", [PAGE, CONTRIBUTING], ids=["architecture", "contributing"])
def test_files_that_are_named_are_there(text):
    for name in re.findall(r"`([\w./]+\.(?:py|yml|toml|md))`", text):
        assert any(
            (ROOT / folder / name).exists() for folder in ("", "xdevice", "tests", "backends")
        ), name
    for name in set(re.findall(r"`([\w.-]+/[\w./-]*)`", text)) - {"dist/"}:
        assert any((ROOT / folder / name).exists() for folder in ("", "xdevice")), name


def test_functions_that_the_page_names_are_there():
    homes = {
        "devices": "base",
        "registry": "core",
        "contents": "tensors",
        "leaves": "tensors",
        "trees": "containers",
    }
    named = re.findall(r"`(\w+)\.(\w+)`", PAGE)
    assert ("trees", "flatten") in named
    for home, name in named:
        if home in homes:
            assert hasattr(import_module(f"xdevice.{homes[home]}.{home}"), name), (home, name)
        if home == "Backend":
            assert hasattr(import_module("xdevice.contract").Backend, name), name


@pytest.mark.skipif(tomllib is None, reason="Python 3.10 cannot read pyproject.toml")
def test_the_map_has_the_floors_that_are_checked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    floors = [set(layer.replace("|", " ").split()) for layer in layers if layer != "__main__"]
    drawn = re.search(r"```text\n(.*?)```", CONTRIBUTING, re.DOTALL)[1]
    rooms = set.union(*floors)
    shown = [
        set(re.findall(r"[a-z_]+", line.partition("  #")[0])) & rooms
        for line in drawn.splitlines()
    ]
    assert [floor for floor in shown if floor] == floors


def test_every_public_name_is_called_stable_or_experimental():
    stable, experimental = (
        set(re.findall(r"`(\w+)`", part))
        for part in re.split(r"\n\| experimental", CONTRIBUTING.partition("| stable |")[2])
    )
    names = {name for name in xdevice.__all__ if not name.endswith("Error")}
    assert names <= stable | experimental
    assert not names & stable & experimental


def test_every_room_is_told_in_one_sentence():
    told = set(re.findall(r"^\| `(\w+)(?:/|\.py)` \|", CONTRIBUTING, re.MULTILINE))
    folders = {path.parent.name for path in (ROOT / "xdevice").glob("*/__init__.py")}
    files = {path.stem for path in (ROOT / "xdevice").glob("*.py")} - {"__init__", "__main__"}
    assert told == folders | files


def test_the_tests_of_a_room_lie_in_a_folder_of_its_name():
    rooms = [
        path.parent.relative_to(ROOT / "xdevice")
        for path in (ROOT / "xdevice").rglob("__init__.py")
    ]
    # what a product adds to the contract is tested with the product, and the steps of twins/models as a whole
    whole = {
        room
        for room in rooms
        if room.parts[1:] != ("contract",) and room.parts[:2] != ("twins", "models")
    }
    without = {
        str(room) for room in whole if not list((ROOT / "tests" / room).rglob("test_*.py"))
    }
    assert len(whole) > 20
    assert without == set()


def test_an_experimental_name_says_so_in_its_docstring():
    experimental = set(
        re.findall(
            r"`(\w+)`", CONTRIBUTING.partition("\n| experimental")[2].partition("\n\n")[0]
        )
    )
    public = {name: value for face in faces() for name, value in names_of(face).items()}
    marked = {
        name
        for name, value in public.items()
        if "Experimental: it may change" in (value.__doc__ or "")
    }
    assert marked == experimental & set(public)
    assert "make_graphed_callable" in marked
