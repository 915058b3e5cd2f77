"""Finds the backend of a model, including models that xdevice otherwise treats as containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdevice.core import frameworks, registry

if TYPE_CHECKING:
    from xdevice.contract import Backend


def backend_of_model(x: object) -> Backend | None:
    """Returns the backend to which the model `x` belongs; None if `x` is not a model. Modules of Flax and Equinox are
    treated as models here, although they are treated as containers when they are moved."""
    owner = registry.owner_and_kind(type(x))
    # if a framework has registered the type, the framework decides whether `x` is a model
    if owner is not None:
        return owner.backend if owner.kind == "model" else None
    for root in {base.__module__.partition(".")[0] for base in type(x).__mro__} & set(
        frameworks.LIBRARIES
    ):
        # loaded here, because a program may use a library (Flax) without having used its backend (JAX) in xdevice yet
        registry.load(frameworks.LIBRARIES[root])
    return next((backend for backend in registry.list_loaded() if backend.has_layers(x)), None)
