"""Tomorrow, simulated: whichever private name a framework drops, whatever does not need it works, and the rest says so.

The whole, as CONTRIBUTING.md has it: `pytest -m long tests/contract/test_absent_names.py`.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import types
from importlib import import_module
from pathlib import Path

import pytest
from helpers.environment import FRAMEWORKS, ROOT, sampled

import xdevice
from xdevice.contract import private
from xdevice.contract.private import (
    CAPABILITIES,
    CORE,
    Names,
    Private,
    capabilities_of,
    dotted_names,
)

SCRIPT = Path(__file__).with_name("absent_names.py")
MOST = 400  # with those that show operations, and those that virtual GPUs replace to refuse and to count memory
MOST_OF_CORE = 40


def names_of(backend):
    xdevice.backend(backend)  # imports the framework as it must be
    return import_module(f"xdevice_{backend}.private").private


def one_of_each_capability(backend):
    """The last name of each capability: the first ones are tried by hand while an adapter is written."""
    return list(
        {
            row.capability: dotted
            for row in names_of(backend).rows
            for dotted in dotted_names(row)
        }.values()
    )


def taken_away(backend, names=()):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), backend, *names],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(
    "backend", sampled(FRAMEWORKS, each_time=["jax"], slow=["paddle", "mxnet"], others="long")
)
def test_without_one_name_of_each_capability_the_rest_works(backend):
    names = one_of_each_capability(backend)
    reports = taken_away(backend, names)
    assert {report["name"] for report in reports} == set(names)
    assert [report for report in reports if report["faults"]] == []


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", FRAMEWORKS)
def test_without_any_name_the_rest_works(backend):
    reports = taken_away(backend)
    assert len(reports) >= len(names_of(backend).rows)
    assert [report for report in reports if report["faults"]] == []
    promised = {
        dotted for row in names_of(backend).rows if not row.only for dotted in dotted_names(row)
    }
    noticed = {report["name"] for report in reports if report["noticed"]}
    assert promised - noticed - with_another_way(backend) == set(), (
        "no step needs them: drop them, or add a step"
    )


def with_another_way(backend):
    """The names without which an adapter goes on in another way: it reads them by `private.get` or `private.has`."""
    files = (ROOT / f"backends/xdevice_{backend}").glob("*.py")
    nodes = (
        node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    )
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return {
        node.args[0].value
        for node in calls
        if ast.unparse(node.func) in ("private.get", "private.has")
    }


def test_there_are_few_private_names_and_fewer_in_the_device_layer():
    rows = [row for backend in FRAMEWORKS for row in names_of(backend).rows]
    count = sum(len(row.names) for row in rows)
    assert count <= MOST, count
    core = sum(len(row.names) for row in rows if {*capabilities_of(row)} & {*CORE})
    assert core <= MOST_OF_CORE, core


def test_a_capability_that_lacks_a_name_is_refused_by_name_and_no_other():
    rows = (
        Private("compile", "math", ("_turbo", "floor")),
        Private("graphs", "math", ("ceil",)),
    )
    names = Names("math", "3.11", rows)
    names.require_names_for("graphs")
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match=r"compile needs math\._turbo, which the installed math does not",
    ):
        names.require_names_for("compile")


def test_a_name_of_several_capabilities_is_refused_to_each():
    names = Names("math", "3.11", (Private("compile and graphs", "math", ("_turbo",)),))
    for capability in ("compile", "graphs"):
        with pytest.raises(
            xdevice.errors.UnsupportedError, match=rf"{capability} needs? math\._turbo"
        ):
            names.require_names_for(capability)
    with pytest.raises(
        xdevice.errors.UnsupportedError, match=r"compile and graphs need math\._turbo"
    ):
        names["math._turbo"]()


@pytest.mark.parametrize(
    "use",
    [
        lambda absent: absent(1),
        lambda absent: absent.part.of_it(1),
        lambda absent: isinstance(1, absent),
        lambda absent: isinstance(1, str | absent),
        lambda absent: list(absent),
        lambda absent: bool(absent),
        lambda absent: types.new_class("Own", (absent,))(),
    ],
)
def test_whatever_is_done_with_an_absent_name_raises_the_error(use):
    absent = Names("math", "3.11", (Private("compile", "math", ("_turbo",)),))["math._turbo"]
    with pytest.raises(xdevice.errors.UnsupportedError, match=r"math\._turbo"):
        use(absent)


def test_a_field_that_objects_lack_is_neither_read_nor_written():
    field = Names("math", "3.11", (Private("models", "pathlib.Path", ("_speed",)),)).field(
        "pathlib.Path._speed"
    )
    with pytest.raises(
        xdevice.errors.UnsupportedError, match=r"models need pathlib\.Path\._speed"
    ):
        field.set(Path(), 3)
    assert not hasattr(Path(), "_speed")


def test_without_a_name_what_is_in_it_is_absent_too(monkeypatch):
    names = Names("math", "3.11", (Private("models", "pathlib.Path", ("cwd", "home")),))
    monkeypatch.setattr(private, "taken_away", {"pathlib.Path"})
    assert names.absent_names_for("models") == ["pathlib.Path.cwd", "pathlib.Path.home"]
    monkeypatch.setattr(private, "taken_away", {"pathlib.Path.cwd"})
    assert names.absent_names_for("models") == ["pathlib.Path.cwd"]
    monkeypatch.setattr(private, "taken_away", {"pathlib.P"})
    assert names.absent_names_for("models") == []


def test_an_unlisted_name_and_an_unknown_capability_are_faults_of_the_adapter():
    with pytest.raises(xdevice.errors.ContractError, match="not listed"):
        Names("math", "3.11", ())["math._turbo"]
    with pytest.raises(xdevice.errors.ContractError, match="'speed'"):
        Names("math", "3.11", (Private("speed", "math", ("_turbo",)),))
    assert len(set(CAPABILITIES)) == len(CAPABILITIES)
