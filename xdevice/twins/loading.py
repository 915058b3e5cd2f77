"""`load`, which loads named tensors from a file or a dict onto a device or into a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from xdevice.errors import ArgumentError, StateError

from .weights import files

if TYPE_CHECKING:
    import os

    from xdevice.contract import Backend

    Path = str | os.PathLike[str]


def load(
    source: Path | Mapping[str, Any],
    device: object = None,
    backend: str | Backend | None = None,
    into: Any = None,
    *,
    strict: bool = True,
) -> Any:
    """Loads the tensors of a safetensors file onto a device of any backend, or into the variables of a model.

    `load(state, into=model)` writes tensors by name, such as a `state_dict` or a result of `models.convert_state`.
    Returns `into`, or otherwise a flat dict of tensors by name, none of which requires gradients. The file is read
    once, and for a GPU also copied once (docs/reference/files.md). It may be deleted afterwards.

    Args:
        source: the path of a file in this format, from any program; with `into`, also a dict of tensors by name.
        device, backend: the device and framework of the tensors; the defaults are those of `xdevice.tensor`.
        into: a model or container with the same names, shapes and dtypes as the file. All of them are checked before
            the first tensor is written. A Keras optimizer must be built. A dict can be written only into a model.
        strict: for a dict, whether every variable must have a tensor, and the `unmapped` of a `State` must be empty.

    Raises:
        MissingFileError, FilePathError, FileFormatError: if the file is missing, unreadable, or in the wrong format.
        ShapeError, DTypeError: if the backend lacks the shape or dtype of a tensor, or would narrow the dtype.
        StateError: if `into` has different names, shapes or dtypes, is on meta, or came with `device` or `backend`.
        UnsupportedError: if `into` cannot be written.
        ArgumentError: if `source` is not a path, or is a dict without `into`.

    Example:
        >>> import os, tempfile
        >>> xdevice.save(path := os.path.join(tempfile.mkdtemp(), "one.safetensors"), {"x": xdevice.ones(2)})
        >>> xdevice.load(path, device="cpu", backend="numpy")
        {'x': array([1., 1.], dtype=float32)}
    """
    if into is not None and (device is not None or backend is not None):
        raise StateError(
            "into= already determines the devices and the backend; leave out device= and backend="
        )
    if isinstance(source, Mapping):
        return _load_named(source, into, strict)
    # a file is always loaded strictly, so strict=False would have no effect
    if not strict:
        raise ArgumentError(
            "strict=False works only with tensors by name, not with a file; call load(load(path), into=model, "
            "strict=False)"
        )
    return (
        files.load_file(source, device, backend)
        if into is None
        else files.load_file_into(source, into)
    )


def _load_named(state: Mapping[str, Any], into: Any, strict: bool) -> Any:
    """Writes tensors by name into the model `into`, and returns the model. Raises the errors that `load` lists."""
    if into is None:
        raise ArgumentError(
            "tensors by name can only be loaded into a model, but into= was not passed; call load(state, into=model)"
        )
    from .models.state import write_named  # a program that only reads files does not need it

    write_named(into, state, strict=strict)
    return into
