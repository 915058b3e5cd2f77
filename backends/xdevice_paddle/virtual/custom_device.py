"""Registers virtual GPUs with Paddle: devices of a plugin, which use the host's memory and have no
kernels.

If a plugin has no kernel for an operation, Paddle computes the operation on the CPU, and copies
operands and results. A plugin is a table of C functions; the module `machine_code` creates these
functions. The position of each function in the table differs between versions, and is read from
the header in Paddle's wheel. The table must be passed to Paddle before `import paddle` ends,
because Paddle lists its devices during the import. So importing this module must not import
Paddle. The module is imported only if the program requests virtual GPUs.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from . import machine_code
from .machine_code import Argument

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORD: Final = ctypes.sizeof(ctypes.c_void_p)
_HEADER: Final = "include/paddle/phi/backends/device_ext.h"
_LIBRARY: Final = "base/libpaddle.so"
_LOAD: Final = (
    "_ZN3phi20LoadCustomRuntimeLibERK19CustomRuntimeParamsSt10unique_ptrI17C_DeviceInterfaceSt14default_deleteIS4_EE"
    "RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPv"
)
"""The mangled name of the function phi::LoadCustomRuntimeLib in Paddle's library. The types of its arguments are
CustomRuntimeParams, std::unique_ptr<C_DeviceInterface>, std::string and void*."""
_VERSION: Final = (0, 1, 1)
"""The version of Paddle's plugin interface in which the functions have the parameters that `_functions` assumes."""

_MOST: Final = 16
"""The largest number of virtual GPUs: Paddle counts the memory of 16 devices, and does not allocate memory on any other
device (3.3.1)."""
_ALIGNMENT: Final = 256
"""The alignment of a virtual GPU's memory in bytes. This number is also passed to Paddle as the
size of the smallest block."""


def register(n: int, kind: str) -> str | None:
    """Registers `n` virtual GPUs with Paddle, named "{kind}:0" and so on. Returns None if this
    succeeds, and otherwise the reason why Paddle cannot have virtual GPUs."""
    if n > _MOST:
        return f"Paddle supports at most {_MOST} devices of a plugin, not {n}"
    reason = machine_code.why_not()
    if reason is not None:
        return reason
    try:
        _register(n, kind)
    # raised for a version of Paddle that lacks the header, a member of the struct, or the function
    # in its library
    except (OSError, LookupError, AttributeError) as error:
        return (
            f"Paddle 2.6.2 and 3.3.1 support virtual GPUs, but this version does not "
            f"({type(error).__name__}: {error})"
        )
    return None


@contextmanager
def environment() -> Iterator[None]:
    """Sets environment variables while the block is open, so that `import paddle` lists the devices of plugins.
    Variables that the user has set are not changed. An empty variable is treated as not set, because Paddle passes
    empty variables on to child processes."""
    wanted = _variables()
    values_before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(
        {name: value for name, value in wanted.items() if not values_before[name]}
    )
    try:
        yield
    finally:
        # restored exactly, so that child processes do not inherit the variables
        for name, value in values_before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _variables() -> dict[str, str]:
    """Returns the environment variables that must be set while Paddle is imported, with their
    values."""
    # Paddle lists the devices of plugins only if it has a folder in which to search for plugins.
    # This folder contains no plugins
    wanted = {"CUSTOM_DEVICE_ROOT": str(Path(__file__).parent)}
    is_verbose = os.environ.get("GLOG_v")  # noqa: SIM112  # glog's own spelling
    # at glog's default level, Paddle would print five lines about the plugin. A user who sets
    # GLOG_v sees these lines
    return wanted if is_verbose else {**wanted, "GLOG_minloglevel": "1"}


def _register(n: int, kind: str) -> None:
    """Passes the table of C functions for `n` devices of the type `kind` to Paddle's library. Raises `OSError`,
    `LookupError` or `AttributeError` if the header, the interface or the library of this version of Paddle is not as
    expected."""
    spec = find_spec("paddle")
    assert spec is not None, "the adapter is loaded only where Paddle is installed"
    root = Path(str(spec.origin)).parent
    header = (root / _HEADER).read_text(encoding="utf-8")
    version = _version(header)
    if version != _VERSION:
        raise LookupError(
            f"expected version {_VERSION} of Paddle's device interface, got {version}"
        )
    # loaded with the flags that `import paddle` will use. If TensorFlow has been imported, these
    # flags make Paddle's own symbols take precedence
    load = getattr(ctypes.CDLL(str(root / _LIBRARY), mode=sys.getdlopenflags()), _LOAD)
    load.argtypes, load.restype = [ctypes.c_void_p] * 4, None
    interface = _interface(_Slots(header), n)
    parameters = _Parameters(
        ctypes.sizeof(_Parameters), interface, _VERSION, kind.encode(), b"virtual"
    )
    owner, origin = ctypes.c_void_p(interface), b"xdevice"
    # the `unique_ptr` is passed by its address, as in C++. The string is the path of the plugin's
    # library, and the last argument is the library's handle, which does not exist for a table
    # created in memory
    load(
        ctypes.byref(parameters),
        ctypes.byref(owner),
        ctypes.byref(_String(origin, len(origin))),
        None,
    )


class _Parameters(ctypes.Structure):
    """The C struct `CustomRuntimeParams` of Paddle's plugin interface."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("interface", ctypes.c_void_p),
        ("version", ctypes.c_size_t * 3),
        ("device_type", ctypes.c_char_p),
        ("sub_device_type", ctypes.c_char_p),
        ("reserved", ctypes.c_char * 40),
    )


class _String(ctypes.Structure):
    """A `std::string` with the memory layout of libstdc++. C++ code may only read it."""

    _fields_ = (
        ("text", ctypes.c_char_p),
        ("length", ctypes.c_size_t),
        ("short", ctypes.c_char * 16),
    )


def _version(header: str) -> tuple[int, ...]:
    """Returns the version of the plugin interface that a header defines: major, minor and
    patch."""
    return tuple(
        int(x)
        for x in re.findall(r"#define PADDLE_CUSTOM_RUNTIME_[A-Z]+_VERSION (\d+)", header)
    )


class _Slots:
    """The layout of the C struct `C_DeviceInterface`, as declared in the text of Paddle's header.
    Sizes and offsets are in words, because each member is a pointer, a `size_t`, or an array of
    these. `words` is the size of the struct, and `places` contains the offset of each member by its
    name."""

    def __init__(self, header: str) -> None:
        body = header.partition("struct C_DeviceInterface {")[2].partition("\n};")[0]
        # comments are removed, because some of them look like members
        body = re.sub(r"/\*.*?\*/|//[^\n]*", "", body, flags=re.DOTALL)
        self.words = 0
        self.places: dict[str, int] = {}
        # matches the name in `(*name)(`, `size_t name;` and `void* name;`, and the length in
        # `void* name[8];`
        for name, length in re.findall(
            r"(?:\(\s*\*\s*|\bsize_t |\bvoid\* )(\w+)(?:\[(\d+)\])?(?:;|\)\()", body
        ):
            self.places[name] = self.words
            self.words += int(length or 1)


def _interface(slots: _Slots, n: int) -> int:
    """Creates a `C_DeviceInterface` (the table of C functions) for `n` virtual GPUs, and returns its address. Paddle
    will own and free the table. `slots` describes the layout of the table."""
    page = machine_code.Page()
    functions = _functions(page, n)
    page.make_executable()
    interface: int = _allocate(slots.words * _WORD)
    words = (ctypes.c_size_t * slots.words).from_address(interface)
    # Paddle compares this member with the size that the struct has in its own code
    words[slots.places["size"]] = slots.words * _WORD
    for name, address in functions.items():
        words[slots.places[name]] = address
    return interface


def _functions(page: machine_code.Page, n: int) -> dict[str, int]:
    """Creates the C functions of `n` devices without kernels, in the memory of `page`. Returns the addresses of these
    functions by their names in the interface.

    All functions except `set_device` and `get_device` ignore the device, because all memory is the host's. Each thread
    has its own current device, as with CUDA: Paddle sets the current device in a thread, and expects it to be set in
    the same thread. The functions for streams are left out, so that copies are synchronous. The remaining functions of
    the interface are left out because Paddle does not need them.
    """
    do_nothing = page.add_success()
    set_device, get_device = page.add_thread_local()
    # the values that the functions below copy to an address that Paddle passes
    count = page.store_forever(_words(n))
    indices = page.store_forever(_words(*range(n)))
    alignment = page.store_forever(_words(_ALIGNMENT))
    event = page.store_forever(_words(1))
    # Paddle passes the device, the destination, the source and the size
    copy = page.add_call("memmove", Argument(1), Argument(2), Argument(3))
    return {
        "set_device": set_device,
        "get_device": get_device,
        "synchronize_device": do_nothing,
        # each event is the number 1, because all work is synchronous, so there is nothing to record
        # or to wait for
        "create_event": page.add_call("memcpy", Argument(1), event, _WORD),
        "record_event": do_nothing,
        "destroy_event": do_nothing,
        "synchronize_event": do_nothing,
        "device_memory_allocate": page.add_call(
            "posix_memalign", Argument(1), _ALIGNMENT, Argument(2), is_status=True
        ),
        "device_memory_deallocate": page.add_call("free", Argument(1)),
        "device_memory_set": page.add_call("memset", Argument(1), Argument(2), Argument(3)),
        "memory_copy_h2d": copy,
        "memory_copy_d2h": copy,
        "memory_copy_d2d": copy,
        # Paddle passes two devices here, so the positions of the other arguments are higher by one
        "memory_copy_p2p": page.add_call("memmove", Argument(2), Argument(3), Argument(4)),
        "get_device_count": page.add_call("memcpy", Argument(0), count, _WORD),
        "get_device_list": page.add_call("memcpy", Argument(0), indices, n * _WORD),
        "device_min_chunk_size": page.add_call("memcpy", Argument(1), alignment, _WORD),
    }


def _words(*values: int) -> bytes:
    """Returns the bytes of a C array of `size_t`."""
    return bytes((ctypes.c_size_t * len(values))(*values))


def _allocate(size: int) -> int:
    """Allocates memory that is filled with zeros, and returns its address. Paddle will free the
    memory with `delete`, which calls the function `free` of the C library."""
    calloc = ctypes.CDLL(None).calloc
    calloc.argtypes, calloc.restype = [ctypes.c_size_t] * 2, ctypes.c_void_p
    address: int = calloc(1, size)
    return address
