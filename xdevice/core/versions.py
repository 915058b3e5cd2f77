"""The versions of frameworks, read without importing them."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

from . import frameworks, registry

if TYPE_CHECKING:
    from collections.abc import Mapping


def installed_version(name: str) -> str | None:
    """Returns the version of the package of a backend's framework, from its metadata, without
    importing it; None if there is no such package. The first call takes half a second if many
    packages are installed."""
    framework = frameworks.find(name)
    # a module may have a different name than its package: `tensorflow` is in `tensorflow-cpu`
    owners = _owners_of_modules().get(
        framework.modules[0] if framework is not None else name, []
    )
    if owners:
        return metadata.version(owners[0])
    # a third party's adapter whose name is no module: the version of the adapter's own package
    point = registry.entry_points().get(name)
    return point.dist.version if point is not None and point.dist is not None else None


# slow, because it reads the metadata of all installed packages
@cache
def _owners_of_modules() -> Mapping[str, list[str]]:
    """Returns, for each top-level module that is installed, the names of the packages that it
    comes from."""
    return metadata.packages_distributions()
