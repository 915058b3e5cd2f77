"""Virtual GPUs for JAX: further CPU devices, which JAX itself makes (`jax_num_cpu_devices`) and keeps apart.

| in place of | stands | because |
|---|---|---|
| `compile_or_get_cached`, `batched_device_put`, `device_put_p`, for a character | `_compiling`, `_placing` | programs \
and copies that a device lacks a dtype for are refused |
| `ExecuteReplicated.__call__`, `_get_fastpath_data`, for `memory=` | `_counting` | JAX does not count the memory of a \
CPU, and calls compiled functions past Python |
| `jax.devices`, for `--xd-cuda` only | `devices` | test suites ask it for "cuda" or "gpu", which JAX does \
not have here (no upstream issue known) |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import jax
from jaxlib.mlir.ir import WalkResult  # type: ignore[attr-defined]  # the stub lacks it

from xdevice.virtual.contract.limited_gpus import LimitedGpus
from xdevice.virtual.contract.virtual_gpus import VirtualGpus
from xdevice_jax import alive, unstarted
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
    "float64": "f64",
    "complex128": "complex<f64>",
    "int64": "i64",
    "uint64": "ui64",
}
"""The names that compiled programs use for the dtypes that a device may lack."""


class JaxVirtualGpus(LimitedGpus, VirtualGpus):
    """JAX's virtual GPUs: its CPU devices, except the first, which stays cpu:0."""

    def why_no_virtual_gpus(self) -> str | None:
        # JAX makes its CPU devices once, when it starts
        if not unstarted.is_started():
            return None
        return (
            "JAX has already been used, and its devices are fixed from then on; move `import xdevice`, with "
            "XDEVICE_VIRTUAL_GPUS set, above `import jax`, or xdevice.virtual_gpus(n) above the first use of JAX"
        )

    def make_virtual_gpus(self, n: int) -> None:
        # otherwise JAX would start a real GPU, and make it the default device
        jax.config.update("jax_platforms", "cpu")
        # the first of them stays cpu:0
        jax.config.update("jax_num_cpu_devices", n + 1)

    def limit(self) -> None:
        """Makes JAX refuse dtypes that the virtual GPUs lack, and counts their memory if that
        is limited, by replacing private functions of JAX."""
        # virtual GPUs without limits need no private function of JAX
        if not any(self.characters):
            return
        private.require("virtual GPUs")
        if self.is_limited():
            self.count_memory()
            # without the fast path in C++, each call of a compiled function goes through the
            # first of the two
            for (owner, name), make in ((_EXECUTE, self._counting), (_FAST_PATH, _leaving_out)):
                setattr(owner, name, make(getattr(owner, name)))
        setattr(*_COMPILE, self._compiling(getattr(*_COMPILE)))
        setattr(*_PLACE, self._placing(getattr(*_PLACE)))
        # `jax.device_put` calls this primitive, except in compiled functions
        _put.def_impl(self._placing(_put.impl))

    def lack_error(self, text: str) -> Exception:
        error: Exception = jax.errors.JaxRuntimeError(f"UNIMPLEMENTED: {text}")
        return error

    def memory_error(self, text: str) -> Exception:
        error: Exception = jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {text}")
        return error

    def memory(self, device: Device) -> Memory:
        # arrays that have been deleted since the last operation no longer count
        if device.kind == "gpu" and self.ledger is not None:
            self._count([self.to_native(device)])
        return super().memory(device)

    def reset_peak(self, device: Device) -> None:
        # counts again, because the new peak is the size of the arrays that exist now
        self.memory(device)
        super().reset_peak(device)

    def _compiling(self, compile_program: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the function with which JAX compiles a program: the new function raises JAX's
        error if a value in the program has a dtype that one of the program's devices lacks."""

        def checked(client: Any, program: Any, natives: Any, *args: Any, **kwargs: Any) -> Any:
            # `natives` is a NumPy array of JAX's devices
            for native in natives.flat:
                place = self.from_native(native)
                # without `jax_enable_x64` JAX makes no arrays of 64 bits, but its programs
                # still count loops in int64
                if place is not None and self.lacks(place) and jax.config.jax_enable_x64:
                    types = _types_in(program)
                    names = [name for name, written in _TYPES.items() if written in types]
                    self.refuse_lacking(place.index, names)
            return compile_program(client, program, natives, *args, **kwargs)

        return checked

    def _placing(self, put: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function that puts arrays on devices: the new function raises JAX's error for
        an array whose dtype its device lacks, or that is too large for the memory that is
        left."""

        def checked(*args: Any, **kwargs: Any) -> Any:
            results = put(*args, **kwargs)
            # `device_put_p` takes several arrays and returns a list, `batched_device_put`
            # returns one array
            for x in results if isinstance(results, list) else [results]:
                natives = x.devices() if hasattr(x, "devices") else ()
                for place in map(self.from_native, natives):
                    if place is not None and place.kind == "gpu":
                        self.refuse_lacking(place.index, [x.dtype.name])
                self._count(natives)
            return results

        return checked

    def _counting(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the method that runs a compiled program: afterwards the memory of the devices
        of its results is counted. The new function raises JAX's out-of-memory error if a device
        has too little."""

        def counted(program: Any, *args: Any) -> Any:
            results = execute(program, *args)
            self._count(
                {native for x in results if hasattr(x, "devices") for native in x.devices()}
            )
            return results

        return counted

    def _count(self, natives: Iterable[Any]) -> None:
        """Adds up the arrays on each of these devices of JAX that is a virtual GPU. Raises
        JAX's out-of-memory error if they exceed its limit. Does nothing if no memory is
        limited."""
        if self.ledger is None:
            return
        for native in natives:
            place = self.from_native(native)
            if place is not None and place.kind == "gpu":
                self.ledger.see(place.index, alive(native))

    def take_for_cuda(
        self, device: Device, has_default: Callable[[FrameType], bool] | None = None
    ) -> bool:
        """Makes `jax.devices("cuda")` and `jax.devices("gpu")` return the virtual GPUs,
        `device` first. Returns True. `has_default` has no effect, because programs pass these
        devices on explicitly."""
        private.require("--xd-cuda")
        find, chosen = jax.devices, self.to_native(device)

        def devices(backend: Any = None) -> list[Any]:
            if backend not in ("cuda", "gpu"):
                return find(backend)
            others = [
                native for native in map(self.to_native, self.devices()[1:]) if native != chosen
            ]
            # the chosen one first: programs take `jax.devices("cuda")[0]`
            return [chosen, *others]

        jax.devices = devices
        return True


def _leaving_out(make_fast_path: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces the function that prepares JAX's fast path for a compiled function. Its None
    means that there is no fast path, on which JAX would run the compiled function in C++, where
    no memory can be counted."""
    return lambda *args, **kwargs: None


def _types_in(program: Any) -> set[str]:
    """Returns the dtypes of all values in a program that JAX is about to compile, under the
    names that the program uses for them: "f64", "i64"."""
    types: set[str] = set()

    def add(operation: Any) -> Any:
        # "tensor<2x3xf64>" gives "f64", and so does "tensor<2xcomplex<f64>>"
        for result in operation.results:
            types.add(str(result.type).rstrip(">").rpartition("<")[2].rpartition("x")[2])
        return WalkResult.ADVANCE

    program.operation.walk(add)
    return types


MIXINS: Final = (JaxVirtualGpus,)
