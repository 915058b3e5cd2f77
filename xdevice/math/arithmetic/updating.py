"""`update`, and the checks that it shares with the optimizers: each parameter must have its gradient and the like.

This module has the rules for all frameworks. An adapter only calls a rule for each parameter.
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

from .gradients import backend_of, backends, inside, no_function, parameters, two_backends
from .scopes import Aside

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xdevice.containers.trees import Walked


def update(params: Any, grads: Any, rule: Callable[[Any, Any], Any]) -> Any:
    """Returns a new container of parameters, with `rule(parameter, gradient)` in place of each parameter.

    Experimental: it may change in a minor version.

    Args:
        params: a tensor or a container of tensors, as `value_and_grad` takes it.
        grads: a container of the same structure. A gradient belongs to the parameter at its place, such as its key.
        rule: a function that returns the new parameter, of the same shape and dtype. It may write into both of its
            arguments, which are copies (`p -= 0.1 * g; return p`).

    The rule computes on the device of its parameter. Gradients are recorded only inside `value_and_grad`.

    Raises:
        NotATensorError: a leaf is not a tensor, or there is none; the rule returns none (was `return` forgotten?).
        ContainerError, ArgumentError: `params` and `grads` differ in structure; they are of several backends.
        DeviceMismatchError: a gradient on a different device than its parameter.
        ShapeError, DTypeError: the rule returns a tensor of another shape or dtype.

    Costs the rule's work for each parameter and, if tensors can be written, a copy of it and of its gradient. The
    optimizers of `xdevice.optim` copy neither.

    Example:
        >>> x, slope = xdevice.tensor([1.0, 2.0]), xdevice.tensor([4.0, 2.0])
        >>> xdevice.math.update(x, slope, lambda p, g: p - 0.5 * g).tolist()
        [-1.0, 1.0]
    """
    if not callable(rule):
        raise no_function("update", rule)
    return registry.eagerly(partial(_updated, params, grads, rule))


def _updated(params: Any, grads: Any, rule: Callable[[Any, Any], Any]) -> Any:
    walk = flatten(params)
    with Aside(backend_of(walk)) as aside:
        rows = Rows("params", walk, grads=grads)
        return rows.rebuilt(rows.applied(aside.inside(rule), writes=True))


class Rows:
    """The tensors of a container, in its order, each with the tensors at its place in other containers of the same
    structure."""

    def __init__(self, name: str, walk: Walked, **others: Any) -> None:
        self.walk, self._name = walk, name
        self._backend, self.leaves = parameters(self.walk, name)
        columns = [self.leaves]
        for other, container in others.items():
            columns.append(self._beside(other, flatten(container)))
        tensors = [*chain(*columns)]
        # asked once for all tensors, which are mostly in one place
        cls, *more = {*map(type, tensors)}
        self._is_together = (
            not more
            and cls in registry.probes
            and len(self._backend.devices_of(cls, tensors)) == 1
        )
        """Whether these are tensors of one type and on one device. Symbols of a traced function have no device."""
        if not self._is_together:
            for other, leaves in zip(others, columns[1:], strict=True):
                self._require_one_device(other, leaves)
        self._rows = [*zip(*columns, strict=True)]

    @property
    def tree(self) -> Tree:
        return Tree(None, walk=self.walk)

    def _beside(self, name: str, walk: Walked) -> list[Any]:
        """The leaves of a container in the order of the parameters. Raises `ContainerError` if the two differ in
        structure."""
        backend, leaves = parameters(walk, name)
        if backend is not self._backend:
            raise two_backends(self._name, self._backend, name, backend)
        # mostly the keys are the same, in the same order
        return (
            leaves
            if have_same_keys(self.walk, walk)
            else self._paired(name, Tree(None, walk=walk), leaves)
        )

    def _paired(self, name: str, other: Tree, leaves: list[Any]) -> list[Any]:
        """The leaves of `other` by the paths of the parameters. Raises `ContainerError` if one has no partner."""
        places, others = self.tree.paths(), other.paths()
        by_place = dict(zip(others, leaves, strict=True))
        for i, place in enumerate(places):
            if place not in by_place:
                raise ContainerError(
                    f"{self._name}{self.tree.path(i)} has no {_one(name)}: {name} and {self._name} differ in structure"
                )
        if len(others) > len(places):
            i = next(i for i, place in enumerate(others) if place not in places)
            raise ContainerError(
                f"{name}{other.path(i)} has no parameter: {self._name} and {name} differ in structure"
            )
        return [by_place[place] for place in places]

    def _require_one_device(self, name: str, leaves: list[Any]) -> None:
        """Raises `DeviceMismatchError` for a tensor on a different device than its parameter."""
        if not registry.probes.keys() >= {*map(type, self.leaves), *map(type, leaves)}:
            return
        places, others = (
            list(map(self._backend.device_of, each)) for each in (self.leaves, leaves)
        )
        i = next((i for i, place in enumerate(places) if place != others[i]), None)
        if i is None:
            return
        raise DeviceMismatchError(
            f"{self._name}{self.tree.path(i)} is on {places[i]}, and its {_one(name)} on {others[i]}; "
            "xdevice.to_device brings them together"
        )

    def applied(self, rule: Callable[..., Any], writes: bool = False) -> list[Any]:
        """Returns what the rule returns for each row. `writes` says whether the rule may write into its arguments."""
        results: list[Any] = self._backend.update(self._rows, rule, inside.get(), writes)
        return results

    def changed(self, rule: Callable[..., tuple[Any, ...]]) -> Rows:
        """Returns the rows that a rule makes from these."""
        # the container and its tree stay the same
        new = copy(self)
        new._rows = self.applied(rule)
        return new

    def kernel(self, name: str) -> Callable[..., Any] | None:
        """Returns the adapter's own kernel for a step with these rows, if it has one."""
        kernels = self._backend.nn()
        # a kernel takes tensors on one device only; the symbols of a traced function have none that could be asked for,
        # and only the kernels in `TRACED` take them
        takes_rows = (
            self._is_together
            if self._backend.tracing() is None
            else name in getattr(kernels, TRACED, ())
        )
        # the gradients of a differentiated function would miss the step, since kernels are not recorded
        kernel = getattr(kernels, name, None) if takes_rows and not inside.get() else None
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
        """Returns the container with new parameters. Raises an error for one that cannot replace the old one."""
        leaves = list(parameters)
        for i, x in enumerate(self.leaves):
            new = leaves[i]
            # mostly nothing differs, and no closer look is needed
            if (
                backends.get(type(new)) is not self._backend
                or new.shape != x.shape
                or new.dtype is not x.dtype
            ):
                leaves[i] = self._checked(x, new, i)
        return rebuild(self.walk, leaves)

    def _checked(self, x: Any, new: Any, i: int) -> Any:
        """Returns `new`, the rule's result for parameter `x`. Raises an error if it cannot be the new parameter."""
        new = registry.as_array(new)
        owned = registry.kind_of(type(new))
        where = f"{self._name}{self.tree.path(i)}"
        if owned is None or owned.backend is not self._backend or owned.kind == "model":
            raise NotATensorError(
                f"the rule gave {shown(new)} of type {type(new).__qualname__} for {where}, expected the new "
                f"parameter as a tensor of {self._backend.name}"
            )
        if new.shape != x.shape:
            raise ShapeError(
                f"the rule gave the shape {tuple(new.shape)} for {where}, which has {tuple(x.shape)}"
            )
        if new.dtype != x.dtype:
            raise DTypeError(
                f"the rule gave {dtype_name(new.dtype)} for {where}, which is {dtype_name(x.dtype)}; the "
                "functions of array_namespace keep the dtype with Python numbers"
            )
        return new


def _one(name: str) -> str:
    return "gradient" if name == "grads" else name
