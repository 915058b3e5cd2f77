"""Finds the backend of a model, even if the model moves as a container does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdevice.core import frameworks, registry

if TYPE_CHECKING:
    from xdevice.contract import Backend


def backend_of_model(x: object) -> Backend | None:
    """Returns the backend whose model `x` is; None if `x` is not a model. Modules of Flax and Equinox are models here,
    although they move as containers do."""
    owner = registry.kind_of(type(x))
    # a framework has registered the type, and so decides whether `x` is a model
    if owner is not None:
        return owner.backend if owner.kind == "model" else None
    for root in {base.__module__.partition(".")[0] for base in type(x).__mro__} & set(
        frameworks.LIBRARIES
    ):
        # loaded here, because a program may use the library (Flax) without having used its backend (JAX) in xdevice
        registry.load(frameworks.LIBRARIES[root])
    return next((backend for backend in registry.list_loaded() if backend.has_layers(x)), None)
