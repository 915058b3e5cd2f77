"""Moves and rebuilds TensorDicts and tensorclasses of PyTorch's library tensordict, if the program has imported it.

What must be kept:
- Their batch size, names, device and non-tensor entries, which a dict lacks. If tensors of other lengths are put in,
  the batch size follows, and so does the device if they are elsewhere.
- Their lock, which `clone` opens, and the locks of those inside, which `to` opens too.
- They hold tensors of PyTorch only: rebuilt with other arrays they become dicts, as their `numpy()` gives.
- A lazily stacked one makes new tensors whenever it is read, so its tensors cannot be replaced.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

from xdevice.contract import Way
from xdevice.errors import ContainerError

if TYPE_CHECKING:
    from types import ModuleType

    from xdevice.base.devices import Device
    from xdevice.contract.primitives import Primitives


def container_way(x: Any, backend: Primitives) -> Way | None:
    """How to walk and move what the library calls a tensor collection; None for anything else."""
    library = sys.modules.get("tensordict")
    if library is None or not hasattr(library, "is_non_tensor") or not library.is_tensor_collection(x):
        return None

    def copy(x: Any, device: Device) -> Any:
        return _locked_as(x, x.clone().to(backend.to_native(device)))

    return Way(
        _items,
        lambda old, inside: _rebuilt(library, old, inside),
        lambda x, device: _locked_as(x, x.to(backend.to_native(device))),
        copy,
        lambda x: [(_pytree.keystr(path), leaf) for path, leaf in _pytree.tree_flatten_with_path(x)[0]],
    )


def _items(x: Any) -> dict[str, Any]:
    if hasattr(x, "stack_dim"):
        raise ContainerError(
            f"the tensors in a {type(x).__qualname__} are stacked whenever they are read, so they cannot be replaced; "
            "pass x.contiguous(), which stacks them once"
        )
    return dict(x.items())


def _rebuilt(library: ModuleType, old: Any, inside: dict[str, Any]) -> Any:
    if not all(isinstance(x, torch.Tensor) or library.is_tensor_collection(x) for x in inside.values()):
        return {key: x.data if library.is_non_tensor(x) else x for key, x in inside.items()}
    tensors = [x for x in inside.values() if not library.is_non_tensor(x)]
    size = [*tensors[0].shape[:1], *old.batch_size[1:]] if tensors and old.batch_size else old.batch_size
    device = tensors[0].device if tensors and old.device is not None else old.device
    new = old.empty(batch_size=size, device=device)
    for key, x in inside.items():
        if library.is_non_tensor(x):
            new.set_non_tensor(key, x.data)
        else:
            new.set(key, x)
    return _locked_as(old, new)


def _locked_as(old: Any, new: Any) -> Any:
    if old.is_locked:
        return new.lock_()
    for before, after in zip(_collections(old), _collections(new), strict=True):
        _locked_as(before, after)
    return new


def _collections(x: Any) -> list[Any]:
    """The tensor collections directly inside of one, as it stores them."""
    if hasattr(x, "tensordicts"):
        return list(x.tensordicts)
    return [inner for _, inner in sorted(x.items()) if hasattr(inner, "is_locked")]
