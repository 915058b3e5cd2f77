"""Implements virtual GPUs for JAX as additional CPU devices, which JAX itself creates (`jax_num_cpu_devices`) and
treats as separate devices.

| replaced in JAX | by | because |
|---|---|---|
| `compile_or_get_cached`, `batched_device_put`, `device_put_p`, if GPUs have limits | `_checking_programs`, \
`_checking_placement` | programs and copies that need a dtype that the device lacks are refused |
| `ExecuteReplicated.__call__`, `_get_fastpath_data`, if GPUs have a limit (`memory=`) | `_counting_memory`, \
`_without_fast_path` | JAX does not count the memory of a CPU, and calls compiled functions in C++, which bypasses \
Python |
| `jax.devices`, for `--xd-cuda` only | `devices` | test suites ask it for "cuda" or "gpu", which JAX does \
not have here (no upstream issue known) |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import jax
from jaxlib.mlir.ir import WalkResult  # type: ignore[attr-defined]  # the stub lacks it

from xdevice.virtual.contract.limited_gpus import LimitedGpus
from xdevice.virtual.contract.virtual_gpus import VirtualGpus
from xdevice_jax import bytes_alive, unstarted
from xdevice_jax.private import private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from xdevice.base.devices import Device
    from xdevice.contract import Memory


_COMPILE = private.place("jax._src.compiler.compile_or_get_cached")
_EXECUTE = private.place("jax._src.interpreters.pxla.ExecuteReplicated.__call__")
_FAST_PATH = private.place("jax._src.pjit._get_fastpath_data")
_PLACE = private.place("jax._src.interpreters.pxla.batched_device_put")
_put = private["jax._src.dispatch.device_put_p"]

_TYPES: Final = {
    "f64": "float64",
    "complex<f64>": "complex128",
    "i64": "int64",
    "ui64": "uint64",
}
"""The dtypes that a virtual GPU may lack, by their names in compiled programs."""


class JaxVirtualGpus(LimitedGpus, VirtualGpus):
    """Virtual GPUs of JAX, with limits on memory and dtypes if the user has set any."""

    def why_no_virtual_gpus(self) -> str | None:
        """Returns the reason why this process cannot have virtual GPUs, or None if it can."""
        if not unstarted.is_started():
            return None
        return (
            "JAX has already been used, so its devices are fixed; set XDEVICE_VIRTUAL_GPUS and move `import xdevice` "
            "above `import jax`, or call xdevice.virtual_gpus(n) before the first use of JAX"
        )

    def make_virtual_gpus(self, n: int) -> None:
        """Makes JAX start with `n` virtual GPUs."""
        # otherwise JAX would start a real GPU, and use it by default
        jax.config.update("jax_platforms", "cpu")
        # the first CPU device is cpu:0
        jax.config.update("jax_num_cpu_devices", n + 1)

    def limit(self) -> None:
        """Makes JAX raise errors for dtypes that the virtual GPUs lack, and count the memory of virtual GPUs if it is
        limited."""
        # virtual GPUs without limits lack nothing, so JAX stays unchanged
        if not any(self.characters):
            return
        private.require_names_for("virtual GPUs")
        # pairs of a place (a module or class, and the name of its function) and the method that wraps this function
        wrappers = [(_COMPILE, self._checking_programs), (_PLACE, self._checking_placement)]
        if self.is_limited():
            self.count_memory()
            wrappers += [(_EXECUTE, self._counting_memory), (_FAST_PATH, _without_fast_path)]
        for place, wrap in wrappers:
            setattr(*place, wrap(getattr(*place)))
        # the primitive that `jax.device_put` uses for copies
        _put.def_impl(self._checking_placement(_put.impl))

    def lack_error(self, text: str) -> Exception:
        """Returns the error to raise if a virtual GPU lacks a dtype."""
        error: Exception = jax.errors.JaxRuntimeError(f"UNIMPLEMENTED: {text}")
        return error

    def memory_error(self, text: str) -> Exception:
        """Returns the error to raise if a virtual GPU has too little memory."""
        error: Exception = jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {text}")
        return error

    def memory(self, device: Device) -> Memory:
        """Returns the size of a device's memory, its free and allocated bytes, and the peak of the allocated bytes. If
        a virtual GPU has a limit, the bytes of its arrays are counted first."""
        # arrays may have been deleted since the last operation
        if device.kind == "gpu" and self.ledger is not None:
            self._count([self.to_native(device)])
        return super().memory(device)

    def reset_peak(self, device: Device) -> None:
        """Sets the peak of a device's memory to the number of bytes that are currently allocated."""
        self.memory(device)  # counts the currently allocated bytes, which become the peak
        super().reset_peak(device)

    def _checking_programs(self, compile_program: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `compile_program`, JAX's function that compiles a program. The wrapper raises an error if a value in
        the program has a dtype that one of the program's devices lacks."""

        def checked(client: Any, program: Any, natives: Any, *args: Any, **kwargs: Any) -> Any:
            """Replaces JAX's function. `natives` is an array with the program's JAX devices."""
            for native in natives.flat:
                place = self.from_native(native)
                # if 64-bit mode is off, JAX creates no such arrays, although its programs still use int64 as counters
                if place is not None and self.lacks(place) and jax.config.jax_enable_x64:
                    names = [_TYPES[text] for text in _types_in(program) if text in _TYPES]
                    self.refuse_lacking(place.index, names)
            return compile_program(client, program, natives, *args, **kwargs)

        return checked

    def _checking_placement(self, put: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `put`, a function of JAX that puts arrays on devices. The wrapper also counts the memory, and raises an
        error if an array has a dtype that its virtual GPU lacks."""

        def checked(*args: Any, **kwargs: Any) -> Any:
            """Replaces JAX's function: puts the arrays on their devices, and then checks the results."""
            results = put(*args, **kwargs)
            # the primitive returns a list, and the other function returns one array
            for x in results if isinstance(results, list) else [results]:
                # a symbol has no devices
                natives = x.devices() if hasattr(x, "devices") else ()
                for place in map(self.from_native, natives):
                    if place is not None and place.kind == "gpu":
                        self.refuse_lacking(place.index, [x.dtype.name])
                self._count(natives)
            return results

        return checked

    def _counting_memory(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `execute`, JAX's method that runs a compiled program. Afterwards, the wrapper counts the memory of the
        program's devices."""

        def counted(program: Any, *args: Any) -> Any:
            """Replaces JAX's method: runs `program`, and then counts the memory."""
            results = execute(program, *args)
            self._count(
                {native for x in results if hasattr(x, "devices") for native in x.devices()}
            )
            return results

        return counted

    def _count(self, natives: Iterable[Any]) -> None:
        """Updates the ledger: for each virtual GPU among the JAX devices `natives`, records how many bytes are
        allocated there. Raises an out-of-memory error if a number exceeds the limit."""
        # nothing is counted if there is no limit
        if self.ledger is None:
            return
        for native in natives:
            place = self.from_native(native)
            if place is not None and place.kind == "gpu":
                self.ledger.set_allocated(place.index, bytes_alive(native))

    def take_for_cuda(
        self, device: Device, has_default: Callable[[FrameType], bool] | None = None
    ) -> bool:
        """Makes `jax.devices("cuda")` and `jax.devices("gpu")` return the virtual GPUs,
        `device` first, until the process ends. `has_default` is ignored. Returns True."""
        private.require_names_for("--xd-cuda")
        list_devices, chosen = jax.devices, self.to_native(device)

        def devices(backend: Any = None) -> list[Any]:
            """Replaces `jax.devices`."""
            if backend not in ("cuda", "gpu"):
                return list_devices(backend)
            # the first of `self.devices()` is cpu:0
            others = [
                native for native in map(self.to_native, self.devices()[1:]) if native != chosen
            ]
            # the chosen device comes first, because programs use `jax.devices("cuda")[0]`
            return [chosen, *others]

        jax.devices = devices
        return True


def _without_fast_path(make_fast_path: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement for JAX's function that creates fast paths. The replacement creates none, so JAX calls a
    compiled function through Python code, which can be replaced."""
    return lambda *args, **kwargs: None


def _types_in(program: Any) -> dict[str, None]:
    """Returns the names of the dtypes of all values in a program that JAX is about to compile, in the order of the
    values. The names are those in the program, such as "f64"."""
    types: dict[str, None] = {}

    def add(operation: Any) -> Any:
        """Adds the dtypes of an operation's results. The return value makes MLIR continue with the next operation."""
        for result in operation.results:
            # a token, which orders effects, has no elements
            types[str(getattr(result.type, "element_type", result.type))] = None
        return WalkResult.ADVANCE

    program.operation.walk(add)
    return types


MIXINS: Final = (JaxVirtualGpus,)
