"""Supports functions that `paddle.jit.to_static` traces: keeps Paddle from rewriting xdevice's
code, and copies symbols (the stand-ins for tensors in a traced program).

Paddle rewrites the source code of all functions that a traced function calls. A rewritten
function cannot use the names of its module, so functions of xdevice would fail with a TypeError
or an ImportError (3.3.1).
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import paddle

from xdevice import errors
from xdevice.base import devices

from .private import private

if TYPE_CHECKING:
    from xdevice.base.devices import Device
    from xdevice.contract import Backend

SYMBOLS: tuple[type, ...] = tuple(
    cls
    # Paddle 2.6 traces with the first class, Paddle 3 with the second
    for cls in (paddle.static.Variable, getattr(getattr(paddle, "pir", None), "Value", None))
    if cls is not None
)


# the set of files that Paddle's tracer of bytecode does not follow, and a function that makes
# changes to the set take effect. Both are None in Paddle 2.6, which lacks them
_skipped = private.get("paddle.jit.sot.opcode_translator.skip_files.skip_file_names")
_skip = private.get("paddle.jit.sot.opcode_translator.skip_files.setup_skip_files")


def exclude_xdevice() -> None:
    """Tells Paddle not to rewrite the functions of xdevice and of this adapter."""
    stand_ins = []
    # the folders of xdevice and of this adapter
    for name, file in (("xdevice", errors.__file__), (__package__ or "", __file__)):
        # a stand-in and not the module itself, because Paddle also ignores every module that it
        # can reach from the module, which would include all of Paddle
        stand_in = ModuleType(name)
        stand_in.__file__ = str(Path(file).with_name("__init__.py"))
        stand_ins.append(stand_in)
    paddle.jit.ignore_module(stand_ins)
    # `ignore_module` does not affect the tracer of bytecode, which to_static(full_graph=False)
    # uses
    if _skipped is not None and _skip is not None:
        _skipped.update(
            str(module.__file__).removesuffix("__init__.py") for module in stand_ins
        )
        _skip()


def copied(x: Any, device: Device, backend: Backend) -> Any:
    """Adds a copy of the symbol `x` to the traced program, and returns the symbol of the copy.
    Raises `UnsupportedError` unless `device` is Paddle's current device, because the whole
    program runs on that device."""
    # the name of a virtual GPU is "vgpu:1"
    current = devices.without_hardware_name(
        devices.parse(paddle.get_device().removeprefix("v"))
    )
    if current is not device:
        raise backend.unsupported(
            f"moving tensors to {device} inside to_static, whose program runs on {current}",
            "move the inputs before calling the function",
        )
    return paddle.assign(x)
