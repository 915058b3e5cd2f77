"""Compiles functions to their operations, one after another, without the Python and the autograd between them.

The function runs once, on `Symbol`s: tensors that stand for others, and have no memory that anybody could read. What
comes to PyTorch's dispatcher below autograd, the backward pass too, is computed, noted and written out as a function.

Rules for this module, and why:
- Nothing is noted that another call might have to do differently: reading a value, a shape that depends on values, an
  operation of another library, writing into what is neither an argument nor made by the function.
- The function itself is called where its operations are not all that it does: where gradients are to flow through it,
  under autocast, or inside other transformations. So it is on devices on which this was not measured.
- `make_fx` notes the same operations. It is not used, because it imports torch._dynamo, which takes 3 to 7 s (2.13).
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._ops import OpOverload
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves, tree_map_only

from xdevice.contract.compiling import Compiling
from xdevice.errors import UnsupportedError

from .modes import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from xdevice.base.devices import Device
    from xdevice.contract.compiling import Compiled, Traced

    Program = Callable[..., list[torch.Tensor]]
    Refuse = Callable[[str, str], UnsupportedError]

_PLAIN: Final = frozenset((torch.Tensor, torch.nn.Parameter))
_MEASURED: Final = ("cpu", "cuda")
_AS_THEY_ARE: Final = (type(None), bool, int, str)
_aten: Final = torch.ops.aten
_ALIASES: Final = (_aten.detach.default, _aten.alias.default)
_DEPENDS: Final = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_WHILE: Final = "while a function is compiled"


class Symbol(torch.Tensor):
    """Stands for a tensor while a function is compiled. `held` is that tensor, and `variable` its name in the
    program."""

    held: torch.Tensor
    variable: str

    @staticmethod
    def __new__(cls, held: torch.Tensor, variable: str) -> Symbol:
        self: Symbol = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=held.device
        )
        self.held, self.variable = held, variable
        torch._C._set_conj(self, held.is_conj())  # what is only marked, as a conjugate
        torch._C._set_neg(self, held.is_neg())
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise UnsupportedError(
            f"torch does not support {func} of a tensor that stands for another one {_WHILE}, in another thread or "
            "after that; return from the function what is needed"
        )

    def __repr__(self) -> str:  # type: ignore[override]
        return f"<{self.dtype} of the shape {tuple(self.shape)}, without values {_WHILE}>"

    def _read(self, *_: Any) -> Any:
        raise UnsupportedError(
            f"torch does not support reading the values of a tensor {_WHILE}; return the tensor and read it outside"
        )

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, new: torch.Tensor) -> None:  # PyTorch itself would not come to the dispatcher
        raise UnsupportedError(f"torch does not support setting the data of a tensor {_WHILE}; return a new tensor")


for _name in ("numpy", "tolist", "data_ptr", "__array__", "__dlpack__", "__reduce_ex__"):
    setattr(Symbol, _name, Symbol._read)  # what would not come to the dispatcher


class Recorder(Mode):
    """Computes and notes the operations of a function, which is called with `arguments` while the mode is active."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the first operation would import torch._dynamo

    def __init__(self, tensors: Sequence[torch.Tensor], refuse: Refuse) -> None:
        super().__init__()
        self._refuse = refuse
        self._given = tensors
        self._variables = (f"v{i}" for i in count())
        self._lines: list[str] = []
        self._last: dict[str, int] = {}
        """The number of the last line that each variable is read in."""
        self._constants: dict[str, Any] = {}
        self.outside: list[torch.Tensor] = []
        """The tensors that are neither arguments nor made by an operation."""
        self.arguments = [Symbol(x.detach(), next(self._variables)) for x in tensors]
        for symbol, x in zip(self.arguments, tensors, strict=True):
            symbol.requires_grad_(x.requires_grad)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ALIASES and type(args[0]) is Symbol:
            return Symbol(func(args[0].held), args[0].variable)
        self._require_repeatable(func, args)
        if func._schema.is_mutable:
            self._require_own(func, args, kwargs)
        known = {id(x.held): x for x in tree_leaves((args, kwargs)) if type(x) is Symbol}
        line = self._called(func, args, kwargs)
        made = func(*tree_map_only(Symbol, _held, args), **tree_map_only(Symbol, _held, kwargs))
        if func is _aten.lift_fresh.default:  # the function makes its argument anew at each call, the program once
            line, made = f"{line}.clone()", made.clone()
        symbols, target = self._bound(made, known)
        self._lines.append(line if target == "_" else f"{target} = {line}")
        return symbols

    # what another call might have to do differently

    def _require_repeatable(self, func: Any, args: Any) -> None:
        if func.namespace != "aten":
            raise self._refuse(f"compiling {func}, which is not its own operation", "call it outside")
        depends = any(tag in func.tags for tag in _DEPENDS)
        if func is _aten.index.Tensor:  # only a mask makes the shape depend on values
            depends = any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
        gives = [str(one.type) for one in func._schema.returns]
        if depends or (gives and not any("Tensor" in one for one in gives)):
            raise self._refuse(
                f"reading a value, or a shape that depends on values ({func}), {_WHILE}",
                "return the tensor and read it outside, or decide by xp.where",
            )
        if torch.Tag.inplace_view in func.tags:
            raise self._refuse(f"changing the shape of a tensor ({func}) {_WHILE}", "make a new one")

    def _require_own(self, func: Any, args: Any, kwargs: Any) -> None:
        outside = set(map(_memory, self.outside))
        for x in _written_into(func, args, kwargs):
            if type(x) is not Symbol or _memory(x.held) in outside:
                raise self._refuse(
                    f"writing into a tensor of the program ({func}) {_WHILE}",
                    "pass it as an argument, or return a new one",
                )

    def require_no_backward(self) -> None:
        """Raises `UnsupportedError` if the function has written gradients into tensors, which a program would not."""
        wrote = any(x.grad is not None for x in self.arguments)
        for x in self.outside:
            if type(x.grad) is Symbol:
                x.grad, wrote = None, True
        if wrote:
            raise self._refuse(f"backward() {_WHILE}", "take the gradients by xdevice.value_and_grad")

    # what is written out

    def _called(self, func: Any, args: Any, kwargs: Any) -> str:
        given = [*map(self._text, args), *(f"{name}={self._text(x)}" for name, x in kwargs.items())]
        return f"{self._text(func)}({', '.join(given)})"

    def _text(self, x: Any) -> str:
        if type(x) is Symbol:
            self._last[x.variable] = len(self._lines)
            return x.variable
        if type(x) in (list, tuple):
            inside = "".join(f"{self._text(part)}, " for part in x)
            return f"[{inside}]" if type(x) is list else f"({inside})"
        if type(x) in _AS_THEY_ARE:
            return repr(x)
        if isinstance(x, torch.Tensor):
            self.outside.append(x)  # not an alias of it: its data may be set
        elif isinstance(x, OpOverload):
            x = x._op  # a frame of Python less, which is a tenth of a small step
        name = f"c{len(self._constants)}"
        self._constants[name] = x
        return name

    def _bound(self, made: Any, known: dict[int, Symbol]) -> tuple[Any, str]:
        """Returns what an operation gives, with symbols in it, and the variables to which the program assigns it."""
        if type(made) in (list, tuple):
            parts = [self._bound(part, known) for part in made]
            target = "".join(f"{target}, " for _, target in parts)
            return type(made)(symbol for symbol, _ in parts), f"({target})" if "v" in target else "_"
        if not isinstance(made, torch.Tensor):
            return made, "_"
        if id(made) in known:
            return known[id(made)], "_"
        if made.layout is not torch.strided or made.is_nested or made.is_quantized:
            raise self._refuse(f"making a tensor that is not dense {_WHILE}", "make it outside")
        symbol = Symbol(made, next(self._variables))
        return symbol, symbol.variable

    def ended(self, results: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Program]:
        """Returns the results as tensors, and the program that computes them."""
        texts, values = zip(*map(self._result, results), strict=True) if results else ((), ())
        free = [""] * len(self._lines)
        for variable, i in self._last.items():
            free[i] += f"; {variable} = None"
        lines = [f"    {line}{freed}" for line, freed in zip(self._lines, free, strict=True)]
        given = ", ".join(x.variable for x in self.arguments)
        code = "\n".join([f"def program({given}):", *lines, f"    return [{', '.join(texts)}]"])
        exec(code, self._constants)
        return list(values), self._constants["program"]

    def _result(self, x: torch.Tensor) -> tuple[str, torch.Tensor]:
        """Returns how a result of the function is written, and its value."""
        if type(x) is not Symbol:
            return f"{self._text(x)}.clone()", x.clone()
        self._last.pop(x.variable, None)
        for argument, given in zip(self.arguments, self._given, strict=True):
            if x is argument:
                return x.variable, given
            if x.variable == argument.variable:
                return f"{x.variable}.detach()", x.held
        return x.variable, x.held


def _held(x: Symbol) -> torch.Tensor:
    return x.held


def _memory(x: torch.Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def _written_into(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors that an operation writes into."""
    for i, one in enumerate(func._schema.arguments):
        if one.alias_info is not None and one.alias_info.is_write:
            given = args[i] if i < len(args) else kwargs.get(one.name)
            yield from (x for x in tree_leaves(given) if isinstance(x, torch.Tensor))


def is_recording() -> bool:
    """Whether a function is being compiled in this thread."""
    if not torch._C._len_torch_dispatch_stack():
        return False
    return any(type(mode) is Recorder for mode in _get_current_dispatch_mode_stack())


class TorchCompiling(Compiling):
    virtual: int

    def compile(self, call: Traced, device: Device) -> Compiled:
        is_measured = self.to_native(device).type in _MEASURED or self.virtual > 0
        programs: dict[Any, tuple[Any, Program] | None] = {}

        def compiled(tensors: list[Any]) -> tuple[Any, list[Any]] | None:
            if not _is_all(tensors):
                return None
            scopes = [mode.device for mode in _get_current_function_mode_stack()]
            key = (
                *[(x.shape, x.stride(), x.dtype, x.requires_grad) for x in tensors],
                torch.is_grad_enabled(), torch.get_default_dtype(), *scopes,
            )  # fmt: skip
            if key not in programs:
                if not is_measured:
                    programs[key] = None
                    return call(tensors)
                made, programs[key] = _recorded(call, tensors, self.unsupported)
                return made  # type: ignore[no-any-return]
            found = programs[key]
            if found is None:
                return None
            note, program = found
            if not scopes:
                return note, program(*tensors)
            with torch._C.DisableTorchFunction():  # a scope would look at each operation
                return note, program(*tensors)

        return compiled


def _recorded(call: Traced, tensors: list[Any], refuse: Refuse) -> tuple[Any, Any]:
    """Returns what `call` gives, and its note and program. Both are None if gradients are to flow through it."""
    recorder = Recorder(tensors, refuse)
    with recorder:
        note, made = call(list(recorder.arguments))
    recorder.require_no_backward()
    if any(x.requires_grad for x in made):
        return None, None
    values, program = recorder.ended(made)
    if any(x.requires_grad for x in (*tensors, *recorder.outside)):
        program = torch.no_grad()(program)  # not all, because it changes kernels, such as that of an LSTM on the CPU
    return (note, values), (note, program)


def _is_all(tensors: list[Any]) -> bool:
    """Whether the operations below autograd are all that a function of these tensors may do now."""
    for x in tensors:
        if type(x) not in _PLAIN or x.grad_fn is not None:
            return False
    return not (
        any(map(torch.is_autocast_enabled, _MEASURED))
        or torch.is_inference_mode_enabled()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._is_tracing()
        or torch.compiler.is_compiling()
        or not all(type(mode) is DeviceContext for mode in _get_current_function_mode_stack())
    )
