"""Compiles a function to the sequence of its operations. These then run without Python or autograd between them.

The function is called once, with `Symbol`s: tensors that represent other tensors, and have no memory that could be
read. Each operation that reaches PyTorch's dispatcher below autograd, even in the backward pass, is computed and also
written as a line of source code. These lines form another function, the program.

Rules for this module, and why:
- The following is refused, because the program might then be wrong for another call: reading a value, a shape that
  depends on values, an operation of another library, and writing to a tensor that is neither an argument nor created by
  the function.
- The function itself is called instead of the program if running the operations is not enough: if gradients must flow
  through the call, under autocast, or inside other transformations. The function is also called on devices for which
  compiling was not measured.
- PyTorch's `make_fx` records the same operations. It is not used, because it imports torch._dynamo, which takes 3 to 7
  s (in PyTorch 2.13).
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.overrides import TorchFunctionMode

from xdevice.errors import UnsupportedError
from xdevice.math.contract.compiling import Compiling
from xdevice_torch.modes import Mode, dispatch_modes, function_modes
from xdevice_torch.private import private
from xdevice_torch.trees import leaves, replaced

from .scopes_aside import SCOPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from xdevice.base.devices import Device
    from xdevice.contract import Kind
    from xdevice.math.contract.compiling import Compiled, Traced

    Program = Callable[..., list[torch.Tensor]]
    Refuse = Callable[[str, str], UnsupportedError]

# the types of tensors for which a program may replace the function's call. A subclass could do more than run the
# operations that reach the dispatcher, and the program would leave that out
_PLAIN: Final = frozenset((torch.Tensor, torch.nn.Parameter))
# the types of devices on which compiling was measured; on other devices the function itself is called
_MEASURED: Final = ("cpu", "cuda")
# types whose `repr` can be used as a literal in the program. float is not among these types,
# because the `repr` of infinity or NaN is not a literal
_LITERALS: Final = (type(None), bool, int, str)
_aten: Final = torch.ops.aten
_ALIASES: Final = (_aten.detach.default, _aten.alias.default)
_ZERO: Final = private["torch.ops.aten._efficientzerotensor"].default
_OF_SHAPES: Final = ("is_same_size.default", "_has_same_storage_numel.default")
"""The operations that return a bool or a number that does not depend on the values of tensors. If an operation is
missing from this list, functions that use the operation are refused, but no wrong program is created."""
# PyTorch's tags for operations whose result, or the shape of the result, depends on the values
# of a tensor
_VALUE_DEPENDENT: Final = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
# reads that do not reach the dispatcher, so `Reading` must refuse them
_READS: Final = (
    torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__, torch.Tensor.__dlpack__,
    torch.Tensor.grad.__get__,  # type: ignore[union-attr]
)  # fmt: skip
_QUICK: Final = frozenset((
    "add", "bmm", "div", "exp", "log", "mm", "mul", "neg", "relu", "rsqrt", "sigmoid", "sqrt", "sub", "sum", "t",
    "tanh", "transpose",
))  # fmt: skip
"""Operations that have the same name and arguments as a function of `torch`. The program calls
this function, which takes 0.7 us less than calling the operation."""
_WHILE_COMPILED: Final = "while a function is compiled"
# PyTorch's private names. If a name is missing, `private` raises an error that contains the
# name when a function is compiled
_make_symbol = private["torch.Tensor._make_wrapper_subclass"]
_set_conj, _set_neg = private["torch._C._set_conj"], private["torch._C._set_neg"]
_without_dispatch = private["torch._C._DisableTorchDispatch"]
_without_scopes = private["torch._C.DisableTorchFunction"]
_transformation = private["torch._C._functorch.peek_interpreter_stack"]
_schema = private.field("torch._ops.OpOverload._schema")
_native = private.field("torch._ops.OpOverload._op")


class Symbol(torch.Tensor):
    """Represents a tensor while a function is compiled. `value` is the represented tensor, and `variable` is the name
    of its variable in the program."""

    value: torch.Tensor
    variable: str

    @staticmethod
    def __new__(cls, value: torch.Tensor, variable: str) -> Symbol:
        """Creates a symbol with the shape, dtype, device and flags of `value`, but without memory."""
        self: Symbol = _make_symbol(
            cls,
            value.shape,
            value.stride(),
            value.storage_offset(),
            dtype=value.dtype,
            device=value.device,
        )
        self.value, self.variable = value, variable
        # each of these two bits of a tensor means that its values are the conjugate, or the
        # negative, of the numbers in memory
        _set_conj(self, value.is_conj())
        _set_neg(self, value.is_neg())
        return self

    __torch_function__ = private["torch._C._disabled_torch_function_impl"]

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        """Always raises `UnsupportedError`, because PyTorch calls this method only for operations that no `Recorder`
        records."""
        # while the `Recorder` is active, PyTorch calls the `Recorder` instead of this method.
        # So this operation was called in another thread, or after the recording
        raise UnsupportedError(
            f"torch does not support {func} on a symbolic tensor in another thread {_WHILE_COMPILED}, or after the "
            f"compilation; return the needed tensor from the function"
        )

    def __repr__(self) -> str:  # type: ignore[override]
        return (
            f"<{self.dtype} of the shape {tuple(self.shape)}, without values {_WHILE_COMPILED}>"
        )

    def _read(self, *_: Any, **__: Any) -> Any:
        """Replaces each method that reads the memory of a tensor. Always raises `UnsupportedError`, because a symbol
        has no memory."""
        raise UnsupportedError(
            f"torch does not support reading the memory of a tensor {_WHILE_COMPILED}; return the tensor, and read it "
            f"outside the function"
        )

    @property
    def data(self) -> torch.Tensor:
        """The symbol without its gradient history, like the attribute `data` of any tensor."""
        return self.detach()

    @data.setter
    def data(
        self, new: torch.Tensor
    ) -> None:  # PyTorch's own setter would not reach the dispatcher
        raise UnsupportedError(
            f"torch does not support setting the data of a tensor {_WHILE_COMPILED}; return a new tensor"
        )


for _name in (
    "numpy", "tolist", "data_ptr", "storage_offset", "is_conj", "is_neg", "__array__", "__dlpack__", "__format__",
    "__reduce_ex__",
):  # fmt: skip
    # PyTorch's own methods would read the memory of a symbol without reaching the dispatcher,
    # where they could be refused
    setattr(Symbol, _name, Symbol._read)


class Reading(TorchFunctionMode):
    """A mode that refuses the reads in `_READS` if the tensor is not a symbol. These reads do not reach the dispatcher,
    so the compiled program would always use the values of the first call."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls `function`. Raises `UnsupportedError` if `function` reads the memory or the
        gradient of a tensor that is not a symbol."""
        if function in _READS and type(args[0]) is not Symbol:
            raise UnsupportedError(
                "torch does not support reading the memory or the gradient of a tensor from outside the compiled "
                "function; pass the tensor as an argument"
            )
        return function(*args, **(kwargs or {}))


class Recorder(Mode):
    """Computes the operations of a function, and writes each operation as a line of a program. The function must be
    called with `arguments` while the mode is active. Afterwards `finished_program` returns the program.

    `tensors` are the arguments of the function, and `refuse` returns the error for an operation
    that cannot be compiled."""

    def __init__(self, tensors: Sequence[torch.Tensor], refuse: Refuse) -> None:
        super().__init__()
        self._refuse = refuse
        self._inputs = tensors
        # the states of the random generator at the start, and after the last operation that drew
        # numbers. If the current state differs from the second one, the function has seeded the
        # generator. All arguments are on one device, so the first one tells whose generator it is
        self._random_at_start = self._random_after_draws = _random_state(tensors[0].device)
        self._has_drawn, self._default_dtype = False, torch.get_default_dtype()
        self._variables = (f"v{i}" for i in count())
        self._lines: list[str] = []
        self._last_use: dict[str, int] = {}
        """Maps each variable to the number of the last line in which it is read."""
        self._constants: dict[str, Any] = {}
        """The global variables of the program, by name: operations, tensors from outside the
        function, and other objects."""
        self._earlier_values: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """Maps the `id` of each argument that was written to the argument and a copy of its earlier values."""
        self.outside: list[torch.Tensor] = []
        """The tensors that are neither arguments nor results of an operation."""
        # a tensor that is passed twice has only one symbol, because it is also a single object
        # inside the function
        symbols = {
            id(x): Symbol(x.detach(), next(self._variables)).requires_grad_(x.requires_grad)
            for x in tensors
        }
        self.arguments: list[Any] = [symbols[id(x)] for x in tensors]

    def record(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Computes the operation `func`, adds it to the program, and returns its result with symbols instead of
        tensors. The arguments are those of `__torch_dispatch__`; `types` is not used. Raises `UnsupportedError` for an
        operation that might make the program wrong for another call of the function. PyTorch calls this method for each
        operation below autograd, because it is also the class's `__torch_dispatch__` (see below)."""
        kwargs = kwargs or {}
        # autograd creates many aliases; they compute nothing, so they are not added to the program
        if func in _ALIASES and type(args[0]) is Symbol:
            return Symbol(func(args[0].value), args[0].variable)
        # reading one of autograd's zeros without memory would end the process here, so real
        # zeros replace it
        if func is _ZERO:
            func = _aten.zeros.default
        self._require_repeatable(func, args)
        if torch.Tag.nondeterministic_seeded in func.tags:
            # before the operation runs, because drawing changes the state too
            self._require_no_seed()
            self._has_drawn = True
        if torch.get_default_dtype() != self._default_dtype:
            raise self._refuse(
                f"setting the default dtype {_WHILE_COMPILED}", "set it outside the function"
            )
        # operations such as `unsqueeze_`, which would change the shape of an argument of the program
        if torch.Tag.inplace_view in func.tags:
            return self._record_reshape(func, args, kwargs)
        if _schema(func).is_mutable:
            self._require_writable(func, args, kwargs)
        # an in-place operation returns its argument, for which `_symbols_and_target` must
        # return the same symbol; it finds the symbol in this dict
        argument_symbols = {id(x.value): x for x in leaves((args, kwargs)) if type(x) is Symbol}
        line = self._call_source(func, args, kwargs)
        result = func(*replaced(Symbol, _value_of, args), **replaced(Symbol, _value_of, kwargs))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._random_after_draws = _random_state(self._inputs[0].device)
        # `torch.tensor(data)` calls `lift_fresh`. The function creates this tensor at each
        # call, but in the program it is a constant. The program clones the constant, so that no
        # later line can change it
        if func is _aten.lift_fresh.default:
            line, result = f"{line}.clone()", result.clone()
        symbols, target = self._symbols_and_target(result, argument_symbols)
        # "_" means that the result needs no variable
        self._lines.append(line if target == "_" else f"{target} = {line}")
        return symbols

    # operations that might have to run differently in another call of the function

    def _require_repeatable(self, func: Any, args: Any) -> None:
        """Raises `UnsupportedError` if the operation is defined by another library, if it returns a value of a tensor
        to Python, or if the shape of its result depends on values."""
        # only PyTorch's own operations are known to do the same in each call
        if func.namespace != "aten":
            raise self._refuse(
                f"compiling {func}, which is not an operation of PyTorch itself",
                "call it outside the function",
            )
        depends_on_values = any(tag in func.tags for tag in _VALUE_DEPENDENT)
        # PyTorch tags all indexing, but the shape depends on values only if an index is a mask
        # (of bools, or of the older uint8). The second argument is the list of indices, in which
        # None stands for an axis without an index
        if func is _aten.index.Tensor:
            depends_on_values = any(
                x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]
            )
        # an operation that returns something other than a tensor returns a value, for example
        # `_local_scalar_dense`, which is `x.item()`
        returned_types = [str(result.type) for result in _schema(func).returns]
        returns_value = bool(returned_types) and not any(
            "Tensor" in name for name in returned_types
        )
        if depends_on_values or (returns_value and func.__name__ not in _OF_SHAPES):
            raise self._refuse(
                f"reading a value, or a shape that depends on values ({func}), {_WHILE_COMPILED}",
                "return the tensor and read it outside the function, or choose values with xp.where",
            )

    def _require_writable(self, func: Any, args: Any, kwargs: Any) -> None:
        """Raises `UnsupportedError` if an operation writes to a tensor that is neither an
        argument nor created by the function. Before the first write to an argument, stores a
        copy of its values for `undo`."""
        # compares the memory, because a symbol may be a view of a tensor from outside
        outside = {*map(_storage_id, self.outside)}
        for x in _written_into(func, args, kwargs):
            # a tensor that is no symbol comes from outside
            if type(x) is not Symbol or _storage_id(x.value) in outside:
                raise self._refuse(
                    f"writing to a tensor that is neither an argument nor created by the compiled function ({func})",
                    "pass the tensor as an argument, or return a new one",
                )
            for original in self._inputs:
                if (
                    _storage_id(original) == _storage_id(x.value)
                    and id(original) not in self._earlier_values
                ):
                    # detached, so that `undo` can write to an argument that requires a gradient
                    self._earlier_values[id(original)] = (
                        original.detach(),
                        original.detach().clone(),
                    )

    def _require_no_seed(self) -> None:
        """Raises `UnsupportedError` if the function has changed the state of the random generator other than by drawing
        numbers, for example with `torch.manual_seed`. Such a change is not an operation, so the program would not
        repeat it."""
        if self._random_after_draws != _random_state(self._inputs[0].device):
            raise self._refuse(
                f"setting the seed or the state of the random generator {_WHILE_COMPILED}",
                "set it outside the function",
            )

    def undo(self) -> None:
        """Restores the arguments that the function has changed, and the state of the random generator, so that the
        function can be called again."""
        for x, earlier_values in self._earlier_values.values():
            x.copy_(earlier_values)
        # the state is empty if it is not known because a CUDA graph is being recorded
        if self._has_drawn and self._random_at_start:
            _generator(self._inputs[0].device).set_state(
                torch.frombuffer(bytearray(self._random_at_start), dtype=torch.uint8)
            )

    def require_no_backward(self) -> None:
        """Raises `UnsupportedError` if the function has called `backward()`. This method stores gradients in tensors,
        but the program would not store them."""
        has_gradients = any(x.grad is not None for x in self.arguments)
        for x in self.outside:
            if type(x.grad) is Symbol:
                has_gradients = True
                # the user's tensor must not keep a symbol as its gradient
                x.grad = None
        if has_gradients:
            raise self._refuse(
                f"backward() {_WHILE_COMPILED}",
                "compute the gradients with xdevice.math.value_and_grad",
            )

    # the operations, written as lines of the program

    def _record_reshape(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Handles an operation that changes the shape of its argument in place (`unsqueeze_`):
        adds to the program the operation that returns a view with the new shape (`unsqueeze`).
        Returns the changed symbol. Raises `UnsupportedError` if there is no such operation, or
        if the argument was not created by the function."""
        symbol = args[0]
        name, _, overload = func.__name__.partition(".")
        # the overload has the same name in both operations, except in `transpose`, where its
        # name is "int"
        view = getattr(
            getattr(_aten, name.removesuffix("_")),
            "int" if func is _aten.transpose_.default else overload,
        )
        is_created_here = type(symbol) is Symbol and not any(
            symbol is x for x in self.arguments
        )
        # without `alias_info`, the operation of this name does not return a view
        if not is_created_here or _schema(view).returns[0].alias_info is None:
            raise self._refuse(
                f"changing the shape of a tensor in place ({func}) {_WHILE_COMPILED}",
                "create a new tensor",
            )
        # `record` does not use its second argument, the types
        new = self.record(view, (), args, kwargs)
        # changes the shape of the symbol itself, without calling this mode again
        with _without_dispatch():
            func(*args, **kwargs)
        symbol.value, symbol.variable = new.value, new.variable
        return symbol

    def _call_source(self, func: Any, args: Any, kwargs: Any) -> str:
        """Returns the source code for the call of an operation in the program, such as "c0(v1, 2)"."""
        arguments = [
            *map(self._source_of, args),
            *(f"{name}={self._source_of(x)}" for name, x in kwargs.items()),
        ]
        name = func.overloadpacket.__name__
        # either the function of `torch` or the C++ function of this overload; neither chooses
        # an overload in Python
        called = getattr(torch, name) if not kwargs and name in _QUICK else _native(func)
        return f"{self._source_of(called)}({', '.join(arguments)})"

    def _source_of(self, x: Any) -> str:
        """Returns the source code of an argument in the program: a variable, a literal, or the
        name of a constant. The constant is added to the program's constants. Raises
        `UnsupportedError` for a random generator."""
        if type(x) is Symbol:
            # the number that the line being written will have
            self._last_use[x.variable] = len(self._lines)
            return x.variable
        if type(x) in (list, tuple):
            items = "".join(f"{self._source_of(part)}, " for part in x)
            return f"[{items}]" if type(x) is list else f"({items})"
        if type(x) in _LITERALS:
            return repr(x)
        if isinstance(x, torch.Tensor):
            # the tensor itself and not an alias, so that the program uses the new values if the
            # user's code sets its `.data` later
            self.outside.append(x)
        elif isinstance(x, torch.Generator):
            raise self._refuse(
                f"drawing from a generator {_WHILE_COMPILED}",
                "draw outside the function, or omit the generator and call torch.manual_seed outside the function",
            )
        name = f"c{len(self._constants)}"
        self._constants[name] = x
        return name

    def _symbols_and_target(
        self, result: Any, argument_symbols: dict[int, Symbol]
    ) -> tuple[Any, str]:
        """Returns the result of an operation with symbols instead of tensors, and the source code of the variables to
        which the program assigns the result: "v3", "(v3, v4, )", or "_" for a result that needs no new variable.
        `argument_symbols` maps the `id` of each tensor among the arguments to its symbol. Raises `UnsupportedError` for
        a tensor that is not dense."""
        if type(result) in (list, tuple):
            parts = [self._symbols_and_target(part, argument_symbols) for part in result]
            target = "".join(f"{target}, " for _, target in parts)
            # variables begin with "v"; if there is no variable, all parts are "_"
            return type(result)(
                symbol for symbol, _ in parts
            ), f"({target})" if "v" in target else "_"
        if not isinstance(result, torch.Tensor):
            return result, "_"
        # the operation has written to this argument and returned it
        if id(result) in argument_symbols:
            return argument_symbols[id(result)], "_"
        if result.layout is not torch.strided or result.is_nested or result.is_quantized:
            raise self._refuse(
                f"creating a tensor that is not dense {_WHILE_COMPILED}",
                "create the tensor outside the function",
            )
        symbol = Symbol(result, next(self._variables))
        return symbol, symbol.variable

    def finished_program(
        self, results: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], Program]:
        """Returns the results of this first call as tensors, and the program. The program computes the same results for
        new arguments, and returns them as a list. `results` contains the tensors that the function has returned; most
        are symbols. Raises `UnsupportedError` if the function has seeded the random generator."""
        if self._has_drawn:
            self._require_no_seed()
        for x, original in zip(self.arguments, self._inputs, strict=True):
            # the function has called `requires_grad_` on an argument, so the program, and this
            # first call, must do the same
            if x.requires_grad != original.requires_grad:
                self._last_use[x.variable] = len(self._lines)
                self._lines.append(f"{x.variable}.requires_grad_({x.requires_grad})")
                original.requires_grad_(x.requires_grad)
        # before the loop below, because `_result_source` removes returned variables from `_last_use`
        sources_and_values = [self._result_source(x) for x in results]
        sources = [source for source, _ in sources_and_values]
        lines = [f"    {line}" for line in self._lines]
        # sets each variable to None after its last use, so that memory is freed as it is in the function itself
        for variable, i in self._last_use.items():
            lines[i] += f"; {variable} = None"
        # a tensor that is passed twice has one variable, but the parameters of `program` must
        # have different names, so only the first parameter has the name of the variable
        names: list[str] = []
        for i, x in enumerate(self.arguments):
            names.append(f"_{i}" if x.variable in names else x.variable)
        code = "\n".join(
            [f"def program({', '.join(names)}):", *lines, f"    return [{', '.join(sources)}]"]
        )
        # the constants are the global variables of the program
        exec(code, self._constants)
        return [value for _, value in sources_and_values], self._constants["program"]

    def _result_source(self, x: torch.Tensor) -> tuple[str, torch.Tensor]:
        """Returns the source code for a result of the function in the program, and the value of the result in this
        first call."""
        # the function has not created this tensor, so a copy is returned, because the caller
        # may write to a result
        if type(x) is not Symbol:
            return f"{self._source_of(x)}.clone()", x.clone()
        # the variable must not be set to None, because it is returned
        self._last_use.pop(x.variable, None)
        for argument, original in zip(self.arguments, self._inputs, strict=True):
            # in this first call, the caller gets its own tensor back, and not the symbol's alias of it
            if x is argument:
                return x.variable, original
            # an alias of the argument, which shares its variable
            if x.variable == argument.variable:
                return f"{x.variable}.detach()", x.value
        return x.variable, x.value


# set after the class has been created, because PyTorch would wrap a method with this name in
# the class body, and the first operation would then import torch._dynamo, which takes seconds
Recorder.__torch_dispatch__ = Recorder.record


def _value_of(x: Symbol) -> torch.Tensor:
    """Returns the tensor that a symbol represents."""
    return x.value


def _storage_id(x: torch.Tensor) -> int:
    """Returns a number that is the same for all tensors with the same storage."""
    # PyTorch always uses the same Python object for a storage as long as the storage exists
    return id(x.untyped_storage())


def _generator(device: torch.device) -> torch.Generator:
    """Returns PyTorch's default random generator for a device: the GPU's generator for a CUDA
    GPU, otherwise the CPU's."""
    # CUDA has no generators before it has been initialized
    generators = torch.cuda.default_generators if device.type == "cuda" else ()
    return generators[device.index] if generators else torch.default_generator


def _random_state(device: torch.device) -> bytes:
    """Returns the state of PyTorch's generator for a device. Returns b"" while a CUDA graph is
    being recorded, because the state cannot be read then."""
    is_capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    return b"" if is_capturing else _generator(device).get_state().numpy().tobytes()


def _written_into(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors to which an operation writes."""
    for i, declared in enumerate(_schema(func).arguments):
        if declared.alias_info is not None and declared.alias_info.is_write:
            argument = args[i] if i < len(args) else kwargs.get(declared.name)
            # the argument may be a list of tensors
            yield from (x for x in leaves(argument) if isinstance(x, torch.Tensor))


_active: Final[list[Recorder]] = []
"""The recorders of all threads that are currently compiling a function."""


def is_recording() -> bool:
    """Whether this thread is currently compiling a function."""
    # `_active` is empty most of the time, and testing this is quicker than reading this thread's modes
    return bool(_active) and any(type(mode) is Recorder for mode in dispatch_modes())


class TorchCompiling(Compiling):
    """The capability `Compiling` on PyTorch; its methods are documented in `xdevice.math.contract.compiling`."""

    # the methods `classify` and `tracing` of this class override those of the adapter's device
    # layer, and call them
    precedes = True

    def classify(self, cls: type) -> Kind | None:
        """Returns "symbol" for `Symbol`, and for any other class the result of the device layer's `classify`."""
        return "symbol" if cls is Symbol else super().classify(cls)  # type: ignore[safe-super]

    def tracing(self) -> str | None:
        """Returns the name of the tracer that is tracing the calling code, or None if nothing is tracing."""
        return "xdevice.compile" if is_recording() else super().tracing()

    virtual: int
    """The number of virtual GPUs."""

    def compile(self, call: Traced, device: Device) -> Compiled:
        """Returns the compiled function. The argument of the compiled function is a list of tensors, and its result is
        the note and the tensors that `call` returns for this list. The compiled function returns None if the core must
        call the user's function itself. The note is an object of the core that the adapter only passes on. All calls
        that run the same program return the same note."""
        private.require_names_for("compile")
        # compiling is also used on virtual GPUs, whose kernels are those of the CPU
        is_usable = self.to_native(device).type in _MEASURED or self.virtual > 0
        # maps each kind of arguments to the note and the program, or to None if the function
        # itself must be called
        programs: dict[Any, tuple[Any, Program] | None] = {}

        def compiled(tensors: list[Any]) -> tuple[Any, list[Any]] | None:
            """Returns the note and the results for these tensors. The first call with such tensors records a program,
            and later calls run this program. Returns None if the core must call the user's function itself."""
            if not _may_run_program(tensors):
                return None
            # `with torch.device(...)` determines where the function creates tensors
            scopes = [mode.device for mode in function_modes()]
            # everything that determines which operations the function runs
            key = (
                *[(x.shape, x.stride(), x.dtype, x.requires_grad) for x in tensors],
                _first_indices(tensors), torch.is_grad_enabled(), torch.get_default_dtype(), *scopes,
            )  # fmt: skip
            if key not in programs:
                # on a device on which compiling was not measured, only the first call uses
                # `call`, so that its checks of the user's function are made there too; later
                # calls find None
                if not is_usable:
                    programs[key] = None
                    return call(tensors)
                results, programs[key] = _results_and_program(call, tensors, self.unsupported)
                return results  # type: ignore[no-any-return]
            entry = programs[key]
            if entry is None:
                return None
            note, program = entry
            if not scopes:
                return note, program(*tensors)
            # the program contains the devices of its new tensors, so it does not need the
            # scopes, which would cost time at each operation
            with _without_scopes():
                return note, program(*tensors)

        return compiled


def _results_and_program(call: Traced, tensors: list[Any], refuse: Refuse) -> tuple[Any, Any]:
    """Calls `call` once and records this call. Returns two pairs: `(note, results)` for this call, and `(note,
    program)` for later calls. The note is an object of the core that this function only passes on. If gradients must
    flow through the results, undoes the effects of the call and returns `(None, None)`. In this case the core must call
    the function itself."""
    recorder = Recorder(tensors, refuse)
    _active.append(recorder)
    try:
        with recorder, Reading():
            note, results = call(list(recorder.arguments))
    except RuntimeError as error:
        # these are PyTorch's messages for reading the memory of a symbol, which has no memory;
        # any other error comes from the user's code
        if "not allocated yet" not in str(error) and "invalid python storage" not in str(error):
            raise
        raise refuse(
            f"reading the memory of a tensor {_WHILE_COMPILED}",
            "return the tensor and read it outside",
        ) from error
    finally:
        _active.remove(recorder)
    recorder.require_no_backward()
    # the program contains only operations below autograd, so no gradient could flow through it
    if any(x.requires_grad for x in results):
        recorder.undo()
        return None, None
    values, program = recorder.finished_program(results)
    if any(x.requires_grad for x in (*tensors, *recorder.outside)):
        # `no_grad` is used only if it is needed, because it makes PyTorch choose other kernels,
        # for example for an LSTM on the CPU
        program = torch.no_grad()(program)
    return (note, values), (note, program)


def _first_indices(tensors: list[Any]) -> tuple[int, ...]:
    """Returns a tuple with the index of each tensor's first occurrence in `tensors`. Returns an empty tuple in the
    usual case that no tensor occurs twice. The result is part of the key of a program, because `f(x, x)` may run
    different operations from `f(x, y)`."""
    ids = [*map(id, tensors)]
    return tuple(map(ids.index, ids)) if len({*ids}) < len(ids) else ()


def _may_run_program(tensors: list[Any]) -> bool:
    """Whether a program may replace a call of the user's function with these tensors. A program is recorded below
    autograd, so it may replace the call only if nothing else intercepts or changes the operations of the function.
    Returns False under autocast, in inference mode, while something traces or transforms the call, or while a mode
    other than a scope of devices is active. Also returns False if the type of a tensor is a subclass, or if a tensor
    has a gradient, is the result of a recorded operation, or has attributes set by the user's program."""
    if (
        any(map(torch.is_autocast_enabled, _MEASURED))
        or torch.is_inference_mode_enabled()
        or _transformation() is not None
        or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        or torch.compiler.is_compiling()
        or not all(isinstance(mode, SCOPES) for mode in function_modes())
    ):
        return False
    return all(
        type(x) in _PLAIN and x.grad_fn is None and x.grad is None and not x.__dict__
        for x in tensors
    )
