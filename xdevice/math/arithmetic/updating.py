"""`update`, and the checks that it shares with the optimizers: each parameter must have a gradient, and an
optimizer's state must contain a tensor for each parameter.

This module checks and pairs the tensors of all frameworks. An adapter only calls the rule for each parameter.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from xdevice.base.dtypes import dtype_name
from xdevice.containers.trees import Tree, flatten, have_same_keys, rebuild
from xdevice.core import registry
from xdevice.errors import (
    ContainerError,
    DeviceMismatchError,
    DTypeError,
    NotATensorError,
    ShapeError,
    shown,
)
from xdevice.math.contract.nn import TRACED

from .gradients import (
    backend_and_tensors,
    backend_by_type,
    backend_of,
    is_differentiating,
    not_callable_error,
    two_backends_error,
)
from .scopes import ScopesRemoved

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xdevice.containers.trees import Walked


def update(params: Any, grads: Any, rule: Callable[[Any, Any], Any]) -> Any:
    """Returns a new container, with each parameter replaced by `rule(parameter, gradient)`.

    Experimental: it may change in a minor version.

    Args:
        params: a tensor or a container of tensors, in a form that `value_and_grad` accepts.
        grads: a container of the same structure, in which each gradient has the same path (such as the same key) as its
            parameter.
        rule: a function that returns the new parameter, of the same shape and dtype. It may write into both of its
            arguments, which are copies (`p -= 0.1 * g; return p`).

    The rule computes on its parameter's device. It is recorded for gradients only inside `value_and_grad`. Costs as
    much as the rule, plus a copy of each parameter and gradient if the framework's tensors can be written into.

    Raises:
        NotATensorError: a leaf is not a tensor, there is no leaf, or the rule returns no tensor (a missing `return`?).
        ContainerError: `params` and `grads` differ in structure. ArgumentError: the tensors belong to several backends.
        DeviceMismatchError: a gradient and its parameter are on different devices.
        ShapeError, DTypeError: the rule returns a tensor of a different shape or dtype.

    Example:
        >>> x, slope = xdevice.tensor([1.0, 2.0]), xdevice.tensor([4.0, 2.0])
        >>> xdevice.math.update(x, slope, lambda p, g: p - 0.5 * g).tolist()
        [-1.0, 1.0]
    """
    if not callable(rule):
        raise not_callable_error("update", rule)
    return registry.call_outside_compilers(partial(_updated, params, grads, rule))


def _updated(params: Any, grads: Any, rule: Callable[[Any, Any], Any]) -> Any:
    """Returns the result of `update`. `update` runs this function outside compilers, because a compiler such as
    torch.compile could not compile the walk over containers."""
    walk = flatten(params)
    with ScopesRemoved(backend_of(walk)) as removed:
        rows = Rows("params", walk, grads=grads)
        return rows.rebuilt(rows.applied(removed.with_scopes(rule), writes=True))


class Rows:
    """One row for each parameter in a container, in the container's order. A row contains the parameter, and the
    tensor at the same path in each of the other containers, such as the gradient.

    `name` is the container name to show in error messages, `walk` is the result of `trees.flatten` for the container,
    and `others` maps the names of the other containers to the containers. Raises `ContainerError` if a row is
    incomplete, `DeviceMismatchError` if the tensors of a row are on several devices, `NotATensorError` if a leaf is not
    a tensor, and `ArgumentError` for tensors of several backends."""

    def __init__(self, name: str, walk: Walked, **others: Any) -> None:
        self.walk, self._name = walk, name
        self._backend, self.leaves = backend_and_tensors(self.walk, name)
        columns = [self.leaves]
        for other_name, container in others.items():
            columns.append(self._column(other_name, flatten(container)))
        tensors = [*chain(*columns)]
        # all tensors are checked together first, because they usually have the same type and
        # are on the same device
        cls, *other_types = {*map(type, tensors)}
        self._is_together = (
            not other_types
            and cls in registry.probes
            and len(self._backend.devices_of(cls, tensors)) == 1
        )
        """Whether all tensors of all rows have the same type and are on the same device. This is False for symbols of
        a traced function, because they have no device."""
        if not self._is_together:
            for other_name, leaves in zip(others, columns[1:], strict=True):
                self._require_one_device(other_name, leaves)
        self._rows = [*zip(*columns, strict=True)]

    @property
    def tree(self) -> Tree:
        """The container as a `Tree`, which returns the path to a parameter."""
        # None in place of the container, because the walk contains it
        return Tree(None, walk=self.walk)

    def _column(self, name: str, walk: Walked) -> list[Any]:
        """Returns the leaves of another container in the order of the parameters. `walk` is the result of
        `trees.flatten` for the container, and `name` is the container name to show in error messages. Raises
        `ContainerError` if the two containers differ in structure, `ArgumentError` if their tensors belong to different
        backends, and the errors of `backend_and_tensors`."""
        backend, leaves = backend_and_tensors(walk, name)
        if backend is not self._backend:
            raise two_backends_error(self._name, self._backend, name, backend)
        # usually, the keys are the same and in the same order, so the leaves need not be paired
        # by their paths
        return (
            leaves
            if have_same_keys(self.walk, walk)
            else self._paired(name, Tree(None, walk=walk), leaves)
        )

    def _paired(self, name: str, tree: Tree, leaves: list[Any]) -> list[Any]:
        """Returns `leaves`, the leaves of the container `tree`, in the order of the parameters, paired by their paths.
        `name` is the container name to show in error messages. Raises `ContainerError` if a parameter or one of the
        leaves has no partner."""
        paths, other_paths = self.tree.paths(), tree.paths()
        by_path = dict(zip(other_paths, leaves, strict=True))
        for i, path in enumerate(paths):
            if path not in by_path:
                raise ContainerError(
                    f"{self._name}{self.tree.path(i)} has no {_item_word(name)}: {name} and {self._name} differ in "
                    "structure"
                )
        # every parameter has a partner here, so if `tree` has more leaves than there are
        # parameters, one of these leaves has no partner
        if len(other_paths) > len(paths):
            i = next(i for i, path in enumerate(other_paths) if path not in paths)
            raise ContainerError(
                f"{name}{tree.path(i)} belongs to no parameter: {self._name} and {name} differ in structure"
            )
        return [by_path[path] for path in paths]

    def _require_one_device(self, name: str, leaves: list[Any]) -> None:
        """Raises `DeviceMismatchError` if one of `leaves` is on a different device than its parameter. `name` is the
        name of the container of `leaves`."""
        # symbols have no device, and their types are not in `probes`
        if not registry.probes.keys() >= {*map(type, self.leaves), *map(type, leaves)}:
            return
        devices, other_devices = (
            list(map(self._backend.device_of, each)) for each in (self.leaves, leaves)
        )
        i = next((i for i, device in enumerate(devices) if device != other_devices[i]), None)
        if i is None:
            return
        raise DeviceMismatchError(
            f"{self._name}{self.tree.path(i)} is on {devices[i]}, but its {_item_word(name)} is on "
            f"{other_devices[i]}; move one of them with xdevice.to_device"
        )

    def applied(self, rule: Callable[..., Any], writes: bool = False) -> list[Any]:
        """Returns a list with the result of `rule(*row)` for each row. `writes` is True if the rule may write into
        its arguments; the rule is then called with copies if the framework's tensors can be written into."""
        results: list[Any] = self._backend.update(
            self._rows, rule, is_differentiating.get(), writes
        )
        return results

    def mapped(self, rule: Callable[..., tuple[Any, ...]]) -> Rows:
        """Returns new `Rows` for the same container, with each row replaced by the rule's result for that row."""
        # the copy refers to the same container
        new = copy(self)
        new._rows = self.applied(rule)
        return new

    def kernel(self, name: str) -> Callable[..., Any] | None:
        """Returns the adapter's kernel `name` (one of `STEPS` in `xdevice.math.contract.nn`), with these rows as its
        first argument. Returns None if the adapter has no such kernel, if the kernel does not accept these tensors,
        or if the call is inside `value_and_grad`."""
        kernels = self._backend.nn()
        # a kernel accepts only tensors that are all on one device. The symbols of a traced
        # function have no device, and only the kernels in `TRACED` accept them
        takes_rows = (
            self._is_together
            if self._backend.tracing() is None
            else name in getattr(kernels, TRACED, ())
        )
        # the kernel is not used inside `value_and_grad`, because kernels are not recorded, so
        # no gradient would flow through the step
        kernel = (
            getattr(kernels, name, None)
            if takes_rows and not is_differentiating.get()
            else None
        )
        if kernel is None:
            return None
        dtype = self.leaves[0].dtype
        # the kernels in `STEPS` are written for float32 only
        if dtype_name(dtype) != "float32" or any(
            x.dtype is not dtype for row in self._rows for x in row
        ):
            return None
        return partial(kernel, self._rows)

    def rebuilt(self, parameters: Sequence[Any]) -> Any:
        """Returns a copy of the container, with the new parameters in place of the old parameters. Raises
        `NotATensorError`, `ShapeError` or `DTypeError` if a new parameter cannot replace the old parameter."""
        leaves = list(parameters)
        for i, x in enumerate(self.leaves):
            new = leaves[i]
            # usually nothing differs, so `_checked` need not be called
            if (
                backend_by_type.get(type(new)) is not self._backend
                or new.shape != x.shape
                or new.dtype is not x.dtype
            ):
                leaves[i] = self._checked(x, new, i)
        return rebuild(self.walk, leaves)

    def _checked(self, x: Any, new: Any, i: int) -> Any:
        """Returns `new`, the rule's result for the parameter `x`, whose index is `i`. Raises `NotATensorError`,
        `ShapeError` or `DTypeError` if `new` cannot replace the parameter."""
        new = registry.as_array(new)
        owned = registry.owner_and_kind(type(new))
        where = f"{self._name}{self.tree.path(i)}"
        if owned is None or owned.backend is not self._backend or owned.kind == "model":
            raise NotATensorError(
                f"the rule returned {shown(new)} of type {type(new).__qualname__} for {where}; expected the new "
                f"parameter, a tensor of {self._backend.name}"
            )
        if new.shape != x.shape:
            raise ShapeError(
                f"the rule returned a tensor of shape {tuple(new.shape)} for {where}, whose shape is {tuple(x.shape)}; "
                "the rule must keep the shape"
            )
        if new.dtype != x.dtype:
            raise DTypeError(
                f"the rule returned a tensor of dtype {dtype_name(new.dtype)} for {where}, whose dtype is "
                f"{dtype_name(x.dtype)}; use Python numbers, which keep the dtype"
            )
        return new


def _item_word(name: str) -> str:
    """Returns the word that errors use for an item of the container `name`: "gradient" for "grads", and otherwise the
    name itself."""
    return "gradient" if name == "grads" else name
