"""Compiles functions with `tf.function`.

Facts about TensorFlow that the code depends on:
- An operation of a graph runs on the device of the scope that was open when the function was
  traced.
- AutoGraph would turn an `if` on a tensor into a condition of the graph, but other frameworks
  raise an error. So AutoGraph is disabled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from xdevice.math.contract.compiling import Compiling
from xdevice_tensorflow.private import private

if TYPE_CHECKING:
    from xdevice.base.devices import Device
    from xdevice.math.contract.compiling import Traced

_call_flat = private.get(
    "tensorflow.python.eager.polymorphic_function.concrete_function.ConcreteFunction._call_flat"
)


class TensorflowCompiling(Compiling):
    """Implements the capability `Compiling` for TensorFlow. `xdevice.math.contract.compiling` documents its methods."""

    def compile(self, call: Traced, device: Device) -> Traced:
        """Returns a compiled function. It accepts a list of tensors, and returns the note and the tensors that `call`
        returns for this list. The note is an object of the core: `call` creates it during a trace, and the adapter only
        passes it on."""
        native = self.to_native(device)
        # maps the shapes and dtypes of the arguments to a note and a program
        programs: dict[Any, tuple[Any, Any]] = {}

        def compiled(tensors: list[Any]) -> tuple[Any, list[Any]]:
            """Returns the note and the results for these tensors. The first call with tensors
            of these shapes and dtypes traces the program."""
            key = tuple([(x.shape, x.dtype) for x in tensors])
            entry = programs.get(key)
            if entry is None:
                entry = programs[key] = _traced(call, tensors, native)
            note, program = entry
            if _call_flat is None:
                return note, program(tensors)
            # a call of the program itself would sort the arguments each time: 150 us for 4
            # tensors, 400 us for 27
            return note, _call_flat(program, tensors, program.captured_inputs)

        return compiled


def _traced(call: Traced, tensors: list[Any], native: str) -> tuple[Any, Any]:
    """Traces `call`. Returns its note, and its program for arguments with the shapes and dtypes
    of `tensors`. The operations of the program run on the device `native`, such as "GPU:0"."""
    note: Any = None

    def traced(tensors: list[Any]) -> list[Any]:
        """Calls `call` with symbolic tensors, stores its note, and returns its results."""
        nonlocal note
        with tf.device(native):
            note, results = call(tensors)
        return results

    program = tf.function(traced, autograph=False).get_concrete_function(tensors)
    return note, program
