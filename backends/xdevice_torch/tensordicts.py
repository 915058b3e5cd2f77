"""Moves and rebuilds TensorDicts and tensorclasses of PyTorch's library tensordict, if the
program has imported it. The library calls both tensor collections, and this module calls them
collections.

Rules for this module:
- A rebuilt collection keeps its batch size, names, device and non-tensor entries, which a dict
  would lose. If its new tensors have another length or another device, its batch size or device
  changes with them.
- A locked collection stays locked. `clone` returns an unlocked one, and both `clone` and `to`
  unlock the collections inside, so they are locked again.
- A collection can hold only tensors of PyTorch. Rebuilt with other arrays it becomes a dict,
  like the result of a TensorDict's `numpy()`.
- A collection does not move tensors inside a non-tensor entry, such as a dict. If there are
  any, the move is refused.
- A lazily stacked collection makes new tensors whenever it is read, so its tensors cannot be
  replaced.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from xdevice.contract import Way
from xdevice.errors import ContainerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from xdevice.base.devices import Device
    from xdevice.contract.primitives import Primitives


def container_way(x: Any, backend: Primitives) -> Way | None:
    """Returns how to walk, rebuild, move and copy `x` if it is a collection of the library tensordict; None for any
    other object."""
    library = sys.modules.get("tensordict")
    # an old release, or a module of the same name, has no `is_non_tensor`
    if (
        library is None
        or not hasattr(library, "is_non_tensor")
        or not library.is_tensor_collection(x)
    ):
        return None

    def move(x: Any, device: Device) -> Any:
        """Returns the collection `x` on a device. Raises `ContainerError` if tensors in a
        non-tensor entry would stay behind."""
        native = backend.to_native(device)
        _refuse_left_behind(library, x, native)
        return _locked_as(x, x.to(native))

    def copy(x: Any, device: Device) -> Any:
        """Returns a copy of the collection `x` on a device. Raises `ContainerError` in the same
        case as `move`."""
        native = backend.to_native(device)
        _refuse_left_behind(library, x, native)
        return _locked_as(x, x.clone().to(native))

    # in the order of `Way`: flatten, rebuild, move, copy, tensors
    return Way(
        _items,
        lambda old, inside: _rebuilt(library, old, inside),
        move,
        copy,
        lambda x: [*_leaves(library, x), *_hidden(library, x)],
    )


def _entries(x: Any) -> Iterator[tuple[str, Any]]:
    """Yields the path and the value of each object directly in a collection, a dict, a list or
    a tuple; nothing for any other object."""
    # a lazily stacked collection keeps its parts as `tensordicts`; its `items` would stack them
    content = x.tensordicts if hasattr(x, "tensordicts") else x
    if isinstance(content, list | tuple):
        yield from ((f"[{i}]", value) for i, value in enumerate(content))
    elif hasattr(content, "items"):
        yield from ((f"[{key!r}]", value) for key, value in content.items())


def _leaves(library: ModuleType, x: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the path and the tensor of each tensor that moves with the collection `x`; nothing for a non-tensor
    entry. `name` is the path to `x`, and `library` the module tensordict."""
    for path, inner in () if library.is_non_tensor(x) else _entries(x):
        if isinstance(inner, torch.Tensor):
            yield name + path, inner
        else:
            yield from _leaves(library, inner, name + path)


def _hidden(
    library: ModuleType, x: Any, name: str = "", is_inside: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the path and the tensor of each tensor inside a non-tensor entry of the collection `x`, such as a dict.
    `name` is the path to `x`, `is_inside` says whether `x` itself is inside such an entry, and `library` is the module
    tensordict."""
    # a non-tensor entry is wrapped in an object, which has the entry as `data`
    if not is_inside and library.is_non_tensor(x):
        x, is_inside = x.data, True
    for path, inner in [("", x)] if isinstance(x, torch.Tensor) else _entries(x):
        if is_inside and isinstance(inner, torch.Tensor):
            yield name + path, inner
        elif not isinstance(inner, torch.Tensor):
            yield from _hidden(library, inner, name + path, is_inside)


def _refuse_left_behind(library: ModuleType, x: Any, native: torch.device) -> None:
    """Raises `ContainerError` if a tensor in a non-tensor entry of a collection is not on the
    device to which the collection is to move: the library would not move it."""
    left = next((path for path, leaf in _hidden(library, x) if leaf.device != native), None)
    if left is not None:
        raise ContainerError(
            f"{left} of this {type(x).__qualname__} is in an entry that is not a tensor, so it would stay "
            f"behind; make that entry a TensorDict, or move it separately"
        )


def _items(x: Any) -> dict[str, Any]:
    """Returns the entries of a collection. Raises `ContainerError` for a lazily stacked
    collection."""
    # only lazily stacked collections have this attribute
    if hasattr(x, "stack_dim"):
        raise ContainerError(
            f"the tensors in this {type(x).__qualname__} are stacked whenever they are read, so they cannot be "
            f"replaced; pass x.contiguous(), which stacks them once"
        )
    return dict(x.items())


def _rebuilt(library: ModuleType, old: Any, inside: dict[str, Any]) -> Any:
    """Returns a collection like `old` with the entries `inside`; a dict if not all entries are PyTorch tensors or
    collections. `library` is the module tensordict."""
    if not all(
        isinstance(x, torch.Tensor) or library.is_tensor_collection(x) for x in inside.values()
    ):
        return {key: x.data if library.is_non_tensor(x) else x for key, x in inside.items()}
    tensors = [x for x in inside.values() if not library.is_non_tensor(x)]
    # a part of a batch, or several joined, has another length along the first axis, and the
    # same other axes
    size = (
        [*tensors[0].shape[:1], *old.batch_size[1:]]
        if tensors and old.batch_size
        else old.batch_size
    )
    # a collection without a device may hold tensors of several, and stays without one
    device = tensors[0].device if tensors and old.device is not None else old.device
    new = old.empty(batch_size=size, device=device)
    for key, x in inside.items():
        if library.is_non_tensor(x):
            new.set_non_tensor(key, x.data)
        else:
            new.set(key, x)
    return _locked_as(old, new)


def _locked_as(old: Any, new: Any) -> Any:
    """Locks `new` if `old` is locked; otherwise locks each collection inside `new` whose
    counterpart in `old` is locked. Both have the same structure. Returns `new`."""
    # a lock also locks all collections inside
    if old.is_locked:
        return new.lock_()
    for before, after in zip(_collections(old), _collections(new), strict=True):
        _locked_as(before, after)
    return new


def _collections(x: Any) -> list[Any]:
    """Returns the tensor collections directly inside a tensor collection: the stored objects,
    no copies."""
    if hasattr(x, "tensordicts"):
        return list(x.tensordicts)
    # sorted by key, because a copy may have its entries in another order
    return [inner for _, inner in sorted(x.items()) if hasattr(inner, "is_locked")]
