"""Whether a program can notice that an array no longer shares memory with a tensor. In PyTorch, `x.numpy()` shares
memory with a tensor on the CPU, but `xdevice.to_numpy(x)` may return a copy."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Final

from .guards import Parents

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_VIEWS: Final = frozenset(
    "detach data cpu view view_as reshape squeeze unsqueeze flatten ravel t T mT permute transpose swapaxes contiguous "
    "real imag flat numpy".split()
)
"""Attributes and methods whose result may share memory with the array or tensor to which they belong."""
_WRITING_METHODS: Final = frozenset(
    "fill sort put partition itemset resize byteswap setfield".split()
)
"""Methods of NumPy's arrays that change the array."""
_WRITING_FUNCTIONS: Final = frozenset(
    "numpy.copyto numpy.put numpy.place numpy.putmask numpy.fill_diagonal numpy.put_along_axis numpy.random.shuffle "
    "random.shuffle".split()
)
"""Functions that change their first argument."""


class Sharing:
    """Searches for code that writes into an array or a tensor. `parents` maps each node to its parent, and `full_name`
    is a function that returns the full name of an expression."""

    def __init__(self, parents: Parents, full_name: Callable[[ast.AST], str]) -> None:
        self.parents = parents
        self.full_name = full_name

    def is_noticed(self, read: ast.Call) -> bool:
        """Whether the program writes into the array that `x.numpy()` returns, or keeps this array and then writes into
        `x`. `read` is the call."""
        return self._is_array_written(read, frozenset()) or self._is_tensor_written_later(read)

    def _is_array_written(self, node: ast.AST, followed: frozenset[str]) -> bool:
        """Whether the program writes into the array `node`, into a view of it, or into a variable or attribute to which
        it is assigned. `followed` contains the names whose uses are already being searched."""
        if self._is_written(node):
            return True
        view = self._view(node)
        if view is not None:
            return self._is_array_written(view, followed)
        return any(
            self._is_array_written(other, followed | {ast.unparse(target)})
            for target in self._targets(node)
            if ast.unparse(target) not in followed
            for other in self._same_names(target)
        )

    def _is_tensor_written_later(self, read: ast.Call) -> bool:
        """Whether the array of `read` is assigned to a name, and the tensor is changed afterwards. If the tensor is an
        attribute, any change in the module counts, because other functions may run afterwards."""
        if not list(self._targets(read)):
            return False
        tensor: ast.AST = read
        # from `x.detach().cpu().numpy()` inwards to `x`
        while not isinstance(tensor, ast.Name):
            match tensor:
                case ast.Call(func=ast.Attribute(attr=name) as inner) if name in _VIEWS:
                    tensor = inner.value
                case ast.Attribute(attr=name, value=inner) if name in _VIEWS:
                    tensor = inner
                case ast.Subscript(value=inner):
                    tensor = inner
                case ast.Attribute():
                    break
                case _:
                    return False
        line = getattr(read, "end_lineno", 0)
        return any(
            self._is_tensor_changed(other)
            for other in self._same_names(tensor)
            if isinstance(tensor, ast.Attribute) or getattr(other, "lineno", 0) > line
        )

    def _is_tensor_changed(self, node: ast.AST) -> bool:
        """Whether the program writes into the tensor `node`, or into a view of it. Methods such as `add_` do so."""
        if self._is_written(node):
            return True
        parent = self.parents.get(node)
        if (
            isinstance(parent, ast.Attribute)
            and parent.attr.endswith("_")
            and not parent.attr.startswith(("_", "requires_grad", "share_memory"))
        ):
            return True
        view = self._view(node)
        return view is not None and self._is_tensor_changed(view)

    def _is_written(self, node: ast.AST) -> bool:
        """Whether the code directly around an array or a tensor writes into it."""
        parent = self.parents.get(node)
        match parent:
            case ast.Subscript(value=value, ctx=ast.Store()):
                return value is node
            case ast.AugAssign(target=target):
                return target is node
            case ast.keyword(arg="out"):
                return True
            case ast.Attribute(attr=name) if name in _WRITING_METHODS:
                call = self.parents.get(parent)
                return isinstance(call, ast.Call) and call.func is parent
            case ast.Call(func=func, args=[first, *_]):
                return first is node and self.full_name(func) in _WRITING_FUNCTIONS
        return False

    def _view(self, node: ast.AST) -> ast.AST | None:
        """Returns the expression around a node that may share its memory, such as `x[0]` or `x.reshape(-1)` for `x`;
        None if there is none."""
        parent = self.parents.get(node)
        match parent:
            case ast.Subscript(value=value) if value is node:
                return parent
            case ast.Attribute(attr=name) if name in _VIEWS:
                call = self.parents.get(parent)
                return call if isinstance(call, ast.Call) and call.func is parent else parent
        return None

    def _targets(self, node: ast.AST) -> Iterator[ast.Name | ast.Attribute]:
        """Yields the variables and attributes to which a node is assigned."""
        match self.parents.get(node):
            case ast.Assign(targets=targets):
                pass
            case ast.AnnAssign(target=target) | ast.NamedExpr(target=target):
                targets = [target]
            case _:
                return
        yield from (node for node in targets if isinstance(node, ast.Name | ast.Attribute))

    def _same_names(self, name: ast.AST) -> Iterator[ast.AST]:
        """Yields the other uses of a variable in its function, or of an attribute in the module."""
        scope = name
        while scope in self.parents and not (
            isinstance(name, ast.Name) and isinstance(scope, _FUNCTIONS)
        ):
            scope = self.parents[scope]
        text = ast.unparse(name)
        last = getattr(name, "attr", "")
        for node in ast.walk(scope):
            if node is name or type(node) is not type(name):
                continue
            # a cheap comparison first, because unparsing takes time
            if getattr(node, "attr", "") == last and ast.unparse(node) == text:
                yield node
