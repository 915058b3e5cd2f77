"""The versions of frameworks, read without importing them."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

from . import frameworks, registry

if TYPE_CHECKING:
    from collections.abc import Mapping


def installed_version(name: str) -> str | None:
    """Returns the version in the metadata of a backend's package, which is not imported; None if there is none. The
    first call takes half a second if many packages are installed."""
    framework = frameworks.find(name)
    owners = _owners_of_modules().get(
        framework.modules[0] if framework is not None else name, []
    )
    if owners:
        return metadata.version(owners[0])
    point = registry.entry_points().get(name)
    return point.dist.version if point is not None and point.dist is not None else None


@cache
def _owners_of_modules() -> Mapping[str, list[str]]:
    """Maps each installed module to the packages that it comes from."""
    return metadata.packages_distributions()
