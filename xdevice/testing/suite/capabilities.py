"""Marks checks with the capabilities (optional parts of an adapter) that they need. A check is skipped if the adapter
lacks a capability that the check needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from xdevice.contract import backend as contract
from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.contract import Backend

    Checks = TypeVar("Checks", bound=Any)

CAPABILITIES: Final = (
    *contract.CAPABILITIES,
    *(part for product in contract.PRODUCTS for part in contract.capabilities_of(product)),
)
"""The capabilities of the device layer and of all other parts of xdevice."""

HOOKS: Final = contract.methods_of(Primitives, *CAPABILITIES)
"""All hooks (methods and properties) of the whole contract by their names, in the contract's order."""

_HOOKS_TO_WRITE: Final[dict[str, tuple[str, ...]]] = {
    part.__name__: vars(part)["needs"] for part in CAPABILITIES
}
"""For each capability, the names of the hooks that an adapter must implement to have this capability."""


def needs(*names: str) -> Callable[[Checks], Checks]:
    """Returns a decorator that marks a check, or all checks of a class: `@needs("Streams")`, `@needs("memory")`. A
    marked check runs only for adapters that have the named capabilities and individual hooks."""
    unknown = [name for name in names if name not in _HOOKS_TO_WRITE and name not in HOOKS]
    # a misspelt name would skip the check for every adapter
    assert not unknown, f"the contract has no {', '.join(unknown)}"

    def mark(marked: Any) -> Any:
        # if the decorated object is a class, all its checks are marked
        checks_inside = [x for name, x in vars(marked).items() if name.startswith("test_")]
        for check in checks_inside if isinstance(marked, type) else [marked]:
            check.needs = (*getattr(check, "needs", ()), *names)
        return marked

    return mark


def lacking(adapter: Backend, check: Any) -> list[str]:
    """Returns the names of the capabilities and hooks that a check needs but the adapter lacks."""
    # the hooks may be in an adapter's folder for a product, which is otherwise loaded when the product is first used
    for product in contract.PRODUCTS:
        contract.extend(adapter, product)
    return [
        name
        for name in getattr(check, "needs", ())
        if not _overrides_all(adapter, _hooks_to_write(name))
    ]


def describe_capability(name: str) -> str:
    """Returns the description of a capability or hook for the end of a run. For a capability, this is its name and the
    hooks that an adapter must implement for it, such as "Prefetch: stage()". For a hook, the description is only the
    hook, such as "memory()"."""
    hooks = ", ".join(f"{hook}()" for hook in _hooks_to_write(name))
    return f"{name}: {hooks}" if name in _HOOKS_TO_WRITE else hooks


def _hooks_to_write(name: str) -> tuple[str, ...]:
    """Returns the names of the hooks that an adapter must implement to have the capability `name`. If `name` is the
    name of a hook, returns only this name."""
    return _HOOKS_TO_WRITE.get(name, (name,))


def _overrides_all(adapter: Backend, hooks: tuple[str, ...]) -> bool:
    """Whether an adapter overrides all of the `hooks`."""
    return all(
        # a hook that the adapter does not override is still the contract's own function
        getattr(getattr(adapter, hook), "__func__", None) is not HOOKS[hook]
        for hook in hooks
    )
