"""Reads the versions of frameworks without importing them."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

from . import frameworks, registry

if TYPE_CHECKING:
    from collections.abc import Mapping


def installed_version(name: str) -> str | None:
    """Returns the version of the package that contains the framework of the backend called `name`, or None if no such
    package is installed. Reads the package's metadata, and does not import the framework. The first call takes half a
    second if many packages are installed."""
    framework = frameworks.find(name)
    # a module may have a different name than its package: `tensorflow` may come from `tensorflow-cpu`
    owners = _owners_of_modules().get(
        framework.modules[0] if framework is not None else name, []
    )
    if owners:
        return metadata.version(owners[0])
    # for a third party's adapter whose name is not that of a module: the version of the adapter's own
    # package
    point = registry.entry_points().get(name)
    return point.dist.version if point is not None and point.dist is not None else None


# slow, because it reads the metadata of all installed packages
@cache
def _owners_of_modules() -> Mapping[str, list[str]]:
    """Returns a dict from each top-level module that is installed to the names of the packages that provide it."""
    return metadata.packages_distributions()
