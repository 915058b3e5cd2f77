"""Moves and rebuilds the TensorDicts and tensorclasses of PyTorch's library tensordict, if the
program has imported this library. The library calls both types tensor collections; this module
calls them collections.

Rules for this module:
- A rebuilt collection has the same batch size, names, device and non-tensor entries as the
  original; a dict would lose these. If the new tensors have a different length or device, the
  batch size or device changes accordingly.
- A locked collection stays locked. `clone` returns an unlocked collection, and both `clone` and `to` unlock the inner
  collections. So this module locks the new collection and its inner collections again.
- A collection can contain only PyTorch tensors. If it is rebuilt with other arrays, the result
  is a dict, like the result of a TensorDict's `numpy()`.
- A collection does not move tensors inside a non-tensor entry, such as a dict. If there are
  such tensors, the move is refused.
- A lazily stacked collection creates new tensors whenever it is read, so its tensors cannot be
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
    """Returns how `x` is walked, rebuilt, moved and copied if it is a collection of the library tensordict. Returns
    None for any other object."""
    library = sys.modules.get("tensordict")
    # an old release of the library, or an unrelated module of the same name, has no `is_non_tensor`
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
        """Returns a copy of the collection `x` on a device. Raises the same `ContainerError` as `move`."""
        native = backend.to_native(device)
        _refuse_left_behind(library, x, native)
        return _locked_as(x, x.clone().to(native))

    return Way(
        flatten=lambda x: _items(library, x),
        rebuild=lambda old, inside: _rebuilt(library, old, inside),
        move=move,
        copy=copy,
        tensors=lambda x: [*_leaves(library, x), *_hidden(library, x)],
    )


def _entries(x: Any) -> Iterator[tuple[str, Any]]:
    """Yields the path and the value of each object that is directly in a collection, a dict, a
    list or a tuple. Yields nothing for any other object."""
    # the attribute `tensordicts` of a lazily stacked collection contains its parts; its `items`
    # would stack them
    content = x.tensordicts if hasattr(x, "tensordicts") else x
    if isinstance(content, list | tuple):
        yield from ((f"[{i}]", value) for i, value in enumerate(content))
    elif hasattr(content, "items"):
        yield from ((f"[{key!r}]", value) for key, value in content.items())


def _leaves(library: ModuleType, x: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the path and the tensor of each tensor that moves with the collection `x`. Yields nothing if `x` is a
    non-tensor entry. `name` is the path to `x`, and `library` is the module tensordict."""
    if library.is_non_tensor(x):
        return
    for path, inner in _entries(x):
        if isinstance(inner, torch.Tensor):
            yield name + path, inner
        else:
            yield from _leaves(library, inner, name + path)


def _hidden(
    library: ModuleType, x: Any, name: str = "", is_inside: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the path and the tensor of each tensor inside a non-tensor entry of the collection `x`, such as a dict.
    `name` is the path to `x`, `is_inside` is True if `x` itself is inside such an entry, and `library` is the module
    tensordict."""
    # a non-tensor entry is wrapped in an object that `_content` unwraps
    if not is_inside and library.is_non_tensor(x):
        x, is_inside = _content(x), True
    # the non-tensor entry may be a tensor itself, which is then its only content
    entries = [("", x)] if isinstance(x, torch.Tensor) else _entries(x)
    for path, inner in entries:
        if is_inside and isinstance(inner, torch.Tensor):
            yield name + path, inner
        elif not isinstance(inner, torch.Tensor):
            yield from _hidden(library, inner, name + path, is_inside)


def _refuse_left_behind(library: ModuleType, x: Any, native: torch.device) -> None:
    """Raises `ContainerError` if a tensor in a non-tensor entry of a collection is not on `native`, the target device.
    The library would not move this tensor."""
    left_path = next(
        (path for path, leaf in _hidden(library, x) if leaf.device != native), None
    )
    if left_path is not None:
        raise ContainerError(
            f"{left_path} of this {type(x).__qualname__} is a tensor inside a non-tensor entry, so it would not be "
            f"moved; make that entry a TensorDict, or move the tensor separately"
        )


def _content(x: Any) -> Any:
    """Returns the value of a non-tensor entry. If the entry has a value for each row, returns the list of these
    values."""
    # the attribute `data` of an entry with a value for each row raises an error if the values differ
    return x.tolist() if hasattr(x, "tensordicts") else x.data


def _items(library: ModuleType, x: Any) -> dict[str, Any]:
    """Returns the entries of a collection. For a non-tensor entry, whose own `items` is empty, returns its value, or
    the entries for its rows. If the entry contains tensors, returns nothing, because a collection does not move them.
    Raises `ContainerError` for a lazily stacked collection. `library` is the module tensordict."""
    if library.is_non_tensor(x):
        if next(_hidden(library, x), None) is not None:
            return {}
        if hasattr(x, "tensordicts"):
            return {str(i): row for i, row in enumerate(x.tensordicts)}
        return {"data": x.data}
    # only lazily stacked collections have this attribute
    if hasattr(x, "stack_dim"):
        raise ContainerError(
            f"xdevice cannot put new tensors into this {type(x).__qualname__}, because it stacks its tensors anew at "
            f"every read; call its method contiguous(), and pass the result"
        )
    return dict(x.items())


def _rebuilt(library: ModuleType, old: Any, entries: dict[str, Any]) -> Any:
    """Returns a collection like `old` with these entries, or a dict if not all entries are PyTorch tensors or
    collections. `library` is the module tensordict."""
    if hasattr(old, "tensordicts"):
        return library.NonTensorStack(*entries.values(), stack_dim=old.stack_dim)
    if library.is_non_tensor(old):
        return library.NonTensorData(entries["data"], batch_size=old.batch_size)
    if not all(
        isinstance(x, torch.Tensor) or library.is_tensor_collection(x) for x in entries.values()
    ):
        return {
            key: _content(x) if library.is_non_tensor(x) else x for key, x in entries.items()
        }
    tensors = [x for x in entries.values() if not library.is_non_tensor(x)]
    # below, the first tensor stands for all tensors, because a collection refuses an entry whose
    # first axes differ from its batch size, and moves each entry to its own device if it has one.
    # The new tensors, such as a part of a batch, differ from the old ones only in the length of
    # the first axis
    size = (
        [*tensors[0].shape[:1], *old.batch_size[1:]]
        if tensors and old.batch_size
        else old.batch_size
    )
    # a collection without a device may contain tensors on several devices, so the new one has
    # no device either
    device = tensors[0].device if tensors and old.device is not None else old.device
    new = old.empty(batch_size=size, device=device)
    for key, x in entries.items():
        if library.is_non_tensor(x) and not hasattr(x, "tensordicts"):
            new.set_non_tensor(key, x.data)
            continue
        if library.is_non_tensor(x) and x.batch_size[: len(size)] != new.batch_size:
            raise ContainerError(
                f"xdevice cannot split or join the values in [{key!r}], which are not tensors; split this "
                f"{type(old).__qualname__} with its own method split, or join the parts with torch.cat, and move each "
                "part with xdevice.to_device"
            )
        new.set(key, x)
    return _locked_as(old, new)


def _locked_as(old: Any, new: Any) -> Any:
    """Locks `new` if `old` is locked. Otherwise locks each inner collection of `new` whose
    counterpart in `old` is locked. `old` and `new` have the same structure. Returns `new`."""
    # locking a collection also locks all its inner collections
    if old.is_locked:
        return new.lock_()
    for old_inner, new_inner in zip(_collections(old), _collections(new), strict=True):
        _locked_as(old_inner, new_inner)
    return new


def _collections(x: Any) -> list[Any]:
    """Returns the tensor collections that are directly inside the tensor collection `x`. The result contains the stored
    objects themselves, not copies."""
    if hasattr(x, "tensordicts"):
        return list(x.tensordicts)
    # sorted by key, because the entries of a copy may be in a different order
    return [inner for _, inner in sorted(x.items()) if hasattr(inner, "is_locked")]
