"""Faults of the kernels of `array_namespace` and `nn`."""

from __future__ import annotations

from .planting import (
    wrong,
)


@wrong("namespace", "lacks required kernels", "a_namespace_is_whole_or_refused")
def namespace_lacks_kernels(adapter, patch, suite):
    patch.setattr(adapter, "namespace", object)


@wrong("nn", "lacks required kernels", "functions_of_layers_are_whole_and_right_or_refused")
def nn_lacks_kernels(adapter, patch, suite):
    patch.setattr(adapter, "nn", object)
