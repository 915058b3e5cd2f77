"""What is installed is what the tree holds: one adapter a folder, one entry point an adapter, and the typing marker."""

from __future__ import annotations

from importlib import metadata, resources

import pytest
from helpers.environment import BUILT_IN, ROOT

import xdevice

try:
    import tomllib
except ImportError:  # Python 3.10
    tomllib = None

NAMES = set(BUILT_IN)


@pytest.fixture(scope="module")
def project():
    if tomllib is None:
        pytest.skip("Python 3.10 cannot read pyproject.toml")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_folders_entry_points_and_wheel_packages_are_one_set(project):
    folders = {path.parent.name for path in (ROOT / "backends").glob("*/__init__.py")}
    packages = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    points = project["project"]["entry-points"]["xdevice.backends"]
    assert folders == {f"xdevice_{name}" for name in NAMES}
    assert packages == {"xdevice"} | {f"backends/{folder}" for folder in folders}
    assert {value.partition(":")[0] for value in points.values()} == folders
    assert set(points) == NAMES
    assert set(project["tool"]["mypy"]["packages"]) == {"xdevice"} | folders


def test_what_is_installed_has_them_all():
    installed = {
        point.name: point.value for point in metadata.entry_points(group="xdevice.backends")
    }
    assert set(installed) == NAMES
    assert metadata.version("xdevice-dl") == xdevice.__version__
    assert (resources.files("xdevice") / "py.typed").is_file()


def test_every_framework_has_an_extra(project):
    extras = project["project"]["optional-dependencies"]
    assert NAMES - {"numpy"} <= set(extras)
    assert {"all", "test"} <= set(extras)
