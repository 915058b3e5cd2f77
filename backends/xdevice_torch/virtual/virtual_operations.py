"""The operations of PyTorch's virtual GPUs. The function `run` carries out nearly all operations on the host.

A tensor on a virtual GPU is an ordinary `torch.Tensor`. Its storage is labelled with the device, points to memory of
the host, and has an attribute `host`: a tensor on the host in that memory. Sizes, strides and offset belong to the
tensor on the virtual GPU itself. So views share their storage, and tensors that C++ code creates (in `detach`, in
autograd, in `as_subclass`) also have values.

PyTorch has no kernels for a device that is implemented in Python (https://github.com/pytorch/pytorch/pull/157859), so
`register` registers the following kernels:

| operations | what is done | why |
|---|---|---|
| all others (the fallback) | `run`: computed by the host's kernel | one kernel for all of them |
| operations that PyTorch would compute with other operations | `run` as well, registered by name | each of the other \
operations would cost as much as the whole, and its devices would be checked separately |
| `as_strided`, `view`, `set_` | the host's kernel on the tensor itself | they change only sizes and \
strides, and no values; PyTorch creates all other views with `as_strided` |
| `_efficientzerotensor` | `zeros` | the zero of forward-mode derivatives has no memory, which the host's kernels \
need |
| `_pin_memory`, `is_pinned`, on the CPU too | a copy, or an error for a virtual GPU; False | PyTorch asks the \
accelerator for an allocator (https://github.com/pytorch/pytorch/pull/126376), which a device in Python does not have |
| `_pack_padded_sequence` | computed on the host, where the lengths remain | as on CUDA |
| `lstm`, `gru`, `lstm_cell`, `gru_cell` | moved to the host and back, with gradients | PyTorch would choose the \
fused kernels of a GPU |
| `ctc_loss` with tensors of lengths | called with ints, as on CUDA | PyTorch would divide by tensors on the host |
| sparse CSR, nested, quantized | refused by name | a tensor on a virtual GPU is always a storage with strides |

Like CUDA, `run` raises an error for operands on two devices and for a generator of the host. Each tensor is created
from a template: an empty tensor on the same device. The template is created with DLPack, because nothing else in Python
can create a tensor on a device whose index is not 0. For rows without a link, no upstream issue is known.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from xdevice.errors import UnsupportedError
from xdevice_torch import trees
from xdevice_torch.private import private

from .virtual_generators import belongs_to_gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAME = "vgpu"

_aten = torch.ops.aten
_HOST = torch.device("cpu")
_CPU: Any = None
"""The key under which the kernels of the host are registered in PyTorch; set by `register`."""
_keys, _key = private["torch._C.DispatchKeySet"], private["torch._C.DispatchKey"]
_set_conj, _set_neg = private["torch._C._set_conj"], private["torch._C._set_neg"]
_schema = private.field("torch._ops.OpOverload._schema")

# operations are listed by name, because a version of PyTorch may lack some operations
_BETWEEN_DEVICES = (
    "_to_copy",
    "copy_",
    "_foreach_copy_",
    "_copy_from",
    "_copy_from_and_resize",
)
"""The operations whose tensors may be on two devices."""
_INDEX_PUTS = ("index_put", "index_put_", "_index_put_impl_")
_FROM_HOST = {
    **dict.fromkeys(("index", *_INDEX_PUTS), ("indices",)),
    "ctc_loss": ("input_lengths", "target_lengths"),
    **dict.fromkeys(("lstm", "gru"), ("batch_sizes",)),
}
"""Maps the name of an operation on a GPU to the names of the arguments that may be on the host."""

_NOTHING: dict[int, Any] = {}
"""The default of dict arguments, which is never changed."""
_templates: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}
"""Maps each device and dtype to an empty tensor. New tensors are created from this tensor."""
_is_forked = False
"""Whether this process was forked from a process that had used virtual GPUs."""
limits: Any = None
"""The backend, which stores the dtypes that its virtual GPUs lack, and the ledger that counts
their memory. Set when the virtual GPUs are created."""


def is_used() -> bool:
    """Whether this process has created a tensor on a virtual GPU."""
    return bool(_templates)


def is_in_bad_fork() -> bool:
    """Whether virtual GPUs are unusable, because this process was forked from a process that
    had used them."""
    return _is_forked


def after_fork() -> None:
    """Called in a forked child. If the parent has used virtual GPUs, makes them unusable in the child, as CUDA GPUs
    would be."""
    global _is_forked
    _is_forked = is_used()


def _in_fork() -> Exception:
    """Returns the error that is raised when a virtual GPU is used in a forked child. Its text
    follows that of CUDA's error."""
    return RuntimeError(
        f"Cannot re-initialize {NAME} in forked subprocess. To use virtual GPUs with multiprocessing, you must use the "
        f"'spawn' start method"
    )


# tensors


def placed(host: torch.Tensor, device: torch.device, storage: Any = None) -> torch.Tensor:
    """Returns a tensor on a virtual GPU that shares the memory of `host`. The result uses `storage`, a virtual GPU's
    storage in the same memory, or a new storage if `storage` is None."""
    if host.layout is not _STRIDED:
        return _placed_sparse(host, device)
    if storage is None:
        memory = host.untyped_storage()
        storage = _storage_at(memory.data_ptr(), device, memory.nbytes())
        # keeps the memory alive, and `on_host` can return this tensor
        storage.host = host
        # counts the memory as used memory of the GPU until the storage is deleted
        storage.share = _Share(device.index, memory.nbytes())
    # an empty tensor on this device with this dtype, because PyTorch has no quick way to create a tensor from a
    # storage. `detach` creates a new tensor object, whose storage and shape are then set with the host's kernel,
    # because the memory is the host's
    template = _templates.get((device, host.dtype))
    new = (_template(device, host.dtype) if template is None else template).detach()
    return _set_storage(_CPU, new, storage, host.storage_offset(), host.size(), host.stride())  # type: ignore[no-any-return]


_STRIDED = torch.strided
_storage_at = private["torch._C._construct_storage_from_data_pointer"]
"""Returns a storage of a device in existing memory. The arguments are the address of the
memory, the device and the number of bytes. The storage does not keep the memory alive."""


def new_storage(memory: torch.UntypedStorage, device: torch.device) -> Any:
    """Returns a storage on `device`, a virtual GPU, that shares the memory of `memory`, a
    storage on the host, and keeps it alive. Raises RuntimeError in a forked child that cannot
    use virtual GPUs, and `torch.OutOfMemoryError` if the GPU has too little memory."""
    if _is_forked:
        raise _in_fork()
    storage = _storage_at(memory.data_ptr(), device, memory.nbytes())
    # keeps the memory alive, and `on_host` creates its tensors from this one
    storage.host = torch.empty(0, dtype=torch.uint8, device=_HOST).set_(memory)
    storage.share = _Share(device.index, memory.nbytes())
    return storage


class _Share:
    """Counts the bytes of a storage as used memory of its virtual GPU. This object is an attribute of the storage, so
    it is deleted together with the storage, and then the bytes are free again."""

    __slots__ = ("_index", "_nbytes")

    def __init__(self, index: int, nbytes: int) -> None:
        # if `take` raises an error because memory is lacking, `__del__` runs too, and must not
        # free any bytes
        self._nbytes = 0
        self._index = index
        limits.ledger.take(index, nbytes)
        self._nbytes = nbytes

    def __del__(self) -> None:
        limits.ledger.give_back(self._index, self._nbytes)


_set_storage = _aten.set_.source_Storage_storage_offset.redispatch
"""Sets the storage, offset, sizes and strides of a tensor, without calling the kernel of
virtual GPUs for this operation."""


def on_host(x: torch.Tensor, is_own: bool = True) -> torch.Tensor:
    """Returns a tensor on the host that shares the memory of `x`, a tensor on a virtual GPU. If `is_own`, the result is
    a new tensor object, whose shape an operation may change. Otherwise the result may be the attribute `host` of the
    storage of `x`."""
    if x.layout is not _STRIDED:
        return _sparse_on_host(x)
    storage = x.untyped_storage()
    host: torch.Tensor | None = getattr(storage, "host", None)
    # the storage was created by C++ code
    if host is None:
        host = _at_memory(storage)
    # `x` is a view of another dtype
    if host.dtype is not x.dtype:
        host = torch.empty(0, dtype=x.dtype, device=_HOST).set_(host.untyped_storage())
    is_same = (
        host.size() == x.size()
        and host.stride() == x.stride()
        and host.data_ptr() == x.data_ptr()
    )
    if is_own or not is_same or x.is_conj() or x.is_neg():
        host = _marked_as(x, host.as_strided(x.size(), x.stride(), x.storage_offset()))
    return host


def _marked_as(x: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Returns `new`, a new tensor, with the same marks for lazy conjugation and negation as `x`. The memory of both
    tensors contains the values before conjugation or negation."""
    if x.is_conj():
        _set_conj(new, True)
    if x.is_neg():
        _set_neg(new, True)
    return new


def _at_memory(storage: torch.UntypedStorage) -> torch.Tensor:
    """Returns a uint8 tensor on the host with the bytes of `storage`. `storage` is on a virtual GPU, and has no
    attribute `host`, because C++ code has created it, as in `torch.load`. The tensor shares the memory of `storage`,
    but does not keep this memory alive. Raises `UnsupportedError` if `storage` has a size but no memory."""
    if storage.nbytes() and not storage.data_ptr():
        raise UnsupportedError(
            f"a storage on {storage.device} that was created in C++ has no memory; create the tensor on the CPU, "
            f"and then move it"
        )
    memory = _storage_at(storage.data_ptr(), _HOST, storage.nbytes())
    return torch.empty(0, dtype=torch.uint8, device=_HOST).set_(memory)


def _template(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Returns a new empty tensor of this dtype on this device, and adds the tensor to
    `_templates`. Raises `UnsupportedError` for a quantized dtype, and another error if the
    device lacks the dtype."""
    if str(dtype) in _QUANTIZED:
        raise _unsupported("quantized")
    limits.refuse_lacking(device.index, [str(dtype).removeprefix("torch.")])
    # a template that is created in inference mode could not be used outside this mode
    with torch.inference_mode(False):
        to_capsule: Any = torch.utils.dlpack.to_dlpack  # type: ignore[attr-defined]
        capsule = to_capsule(torch.empty(0, dtype=torch.uint8, device=_HOST))
        # the capsule of an empty tensor on the host is changed, so that its device is the virtual GPU
        header = _DLDevice.from_address(_pointer(capsule, b"dltensor"))
        header.kind, header.index = _EXTENSION, device.index
        new = torch.utils.dlpack.from_dlpack(capsule)
        # DLPack does not support all dtypes, so the template is created as bytes and viewed as the dtype
        if dtype is not torch.uint8:
            new = _aten.view.dtype.redispatch(_CPU, new, dtype)
    _templates[device, dtype] = new
    return new


_QUANTIZED = ("torch.quint8", "torch.qint8", "torch.qint32", "torch.quint4x2", "torch.quint2x4")


class _DLDevice(ctypes.Structure):
    """The first fields of DLPack's struct `DLManagedTensor`: the address of the memory, and the
    kind and index of the device."""

    _fields_ = (("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("index", ctypes.c_int32))


# kDLExtDev, the kind of device in DLPack that PyTorch interprets as PrivateUse1
_EXTENSION = 12
# a separate prototype, because types that are set on `ctypes.pythonapi.PyCapsule_GetPointer`
# itself would apply to all its users, and would break MXNet's capsules
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


# operations


class _Facts:
    """The facts about an operation that `run` needs at each call. They are read from the
    operation's schema only once."""

    def __init__(self, op: Any) -> None:
        """Reads the facts about the operation `op` from its schema."""
        name, schema = op.overloadpacket.__name__, _schema(op)
        arguments = schema.arguments
        self.names = tuple(argument.name for argument in arguments)
        # the names of the arguments to which the operation writes
        self.written = frozenset(
            a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write
        )
        self.writes = schema.is_mutable  # whether it writes to an argument
        # whether a result is a view of an argument: it shares the argument's memory, but is not
        # the argument itself
        self.is_view = any(
            r.alias_info is not None and not r.alias_info.is_write for r in schema.returns
        )
        # `is_put`: whether it assigns to an index, as `x[i] = value` does
        self.is_copy, self.is_put = name == "copy_", name in _INDEX_PUTS
        # whether all of its operands must be on the same device
        self.needs_one_device = name not in _BETWEEN_DEVICES
        # the names of the arguments that may be on the host
        self.from_host = _FROM_HOST.get(name, ())
        # whether a keyword argument may be a random generator
        self.takes_generator = any("Generator" in str(argument.type) for argument in arguments)


_facts: dict[Any, _Facts] = {}
"""The facts about each operation that has been called."""


def run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Carries out the operation `op` on virtual GPUs: computes the operation on the host, and
    returns the result as tensors on the virtual GPU."""
    if _is_forked:
        raise _in_fork()
    if torch.is_autocast_enabled("cpu"):  # autocast for the CPU does not apply to a GPU
        with torch.autocast("cpu", enabled=False):
            return run(op, *args, **kwargs)
    with _NoOverrides():
        return _computed(op, args, kwargs)


_NoOverrides = private["torch._C.DisableTorchFunctionSubclass"]
"""A block in which PyTorch does not call the `__torch_function__` of a user's tensor class."""


def _computed(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Computes an operation on the host, in the memory of its tensors, and returns the results
    as tensors on the virtual GPU. Raises PyTorch's errors for tensors on two devices and for a
    generator of the host. `args` and `kwargs` are the arguments of the operation `op`."""
    facts = _facts.get(op)
    if facts is None:
        facts = _facts[op] = _Facts(op)
    # in x[i] = value, the value (the third argument) may be on any device if it is a 0-d tensor,
    # as with CUDA
    if facts.is_put and not args[2].dim():
        args = *args[:2], args[2].to(args[0].device), *args[3:]
    # maps the `id` of each tensor on a virtual GPU to the tensor on the host with the same memory
    hosts: dict[int, torch.Tensor] = {}
    tensors = [*_tensors(args), *_tensors(kwargs.values())] if kwargs else [*_tensors(args)]
    # first the virtual GPU of the operands, and later that of the result
    gpu = None
    # whether the tensors are on more than one device
    is_mixed = False
    for x in tensors:
        device = x.device
        if device.type != NAME:
            is_mixed = True
            continue
        if gpu is None:
            gpu = device
        elif gpu != device:
            is_mixed = True
        # an operation that writes may also change the shape of this tensor, so it must be a new object
        hosts[id(x)] = on_host(x, is_own=facts.writes)
    if is_mixed and gpu is not None and facts.needs_one_device:
        _check_devices(op, facts, tensors, args, kwargs)
    # most calls have no keyword arguments, and need none of these steps
    if kwargs:
        gpu = _result_gpu(kwargs, gpu)
        if facts.takes_generator:
            _check_generator(kwargs, gpu)
        result = op(*_replaced(args, hosts), **_host_keywords(kwargs, hosts))
    else:
        result = op(*_replaced(args, hosts))
    if facts.writes:
        # nothing changes for the tensors that the operation has only read
        for x in tensors:
            if id(x) in hosts:
                _follow_shape(x, hosts[id(x)])
    # `a.copy_(b)` returns `a`, which is on the host if only `b` is on a virtual GPU
    if facts.is_copy:
        return args[0]
    # the result is on the host
    if gpu is None:
        return result
    # no tensor in the result is an operand or shares memory with an operand
    if not facts.writes and not facts.is_view:
        return _wrapped(result, gpu)
    on_gpu = [x for x in tensors if id(x) in hosts]
    operands = {id(hosts[id(x)]): x for x in on_gpu}
    dense = [x for x in on_gpu if x.layout is _STRIDED]
    # the keys are `id`s, because PyTorch always uses the same Python object for a storage as
    # long as the storage exists
    storages = {id(hosts[id(x)].untyped_storage()): x.untyped_storage() for x in dense}
    return _wrapped(result, gpu, operands, storages)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors among the arguments of an operation, including those in lists and tuples."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _check_devices(
    op: Any, facts: _Facts, tensors: list[torch.Tensor], args: Any, kwargs: dict[str, Any]
) -> None:
    """Raises the error that CUDA raises if the tensors of the operation `op` are on two virtual GPUs, or on a virtual
    GPU and the host. `facts` are the `_Facts` of `op`."""
    places = {x.device for x in tensors if x.device.type == NAME}
    places.update(x.device for x in _misplaced(facts, args, kwargs))
    if len(places) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(sorted(map(str, places)))}! (when calling {op.name().partition('.')[0]})"
        )


def _misplaced(facts: _Facts, args: Any, kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yields the arguments of an operation on a GPU that are tensors on the host, although the operation requires them
    on the GPU. `facts` are the `_Facts` of the operation."""
    # `args` may be shorter than `names`, because trailing arguments have defaults
    for name, value in (*zip(facts.names, args, strict=False), *kwargs.items()):
        if name in facts.from_host:
            continue
        for x in _tensors([value]):
            # as with CUDA, a 0-d tensor may be on the host if it is only read
            if x.device.type != NAME and (x.dim() or name in facts.written):
                yield x


def _check_generator(kwargs: dict[str, Any], gpu: torch.device | None) -> None:
    """Raises the error that CUDA raises for a generator of the host. `gpu` is the virtual GPU of the operation. If
    `gpu` is None, raises nothing."""
    # PyTorch's operations accept generators only as keyword arguments
    for value in kwargs.values():
        if gpu is not None and isinstance(value, torch.Generator) and not belongs_to_gpu(value):
            raise RuntimeError(
                f"Expected a '{NAME}' device type for generator but found '{value.device.type}'; "
                f"make it for the GPU: torch.Generator({str(gpu)!r})"
            )


def _result_gpu(kwargs: dict[str, Any], gpu: torch.device | None) -> torch.device | None:
    """Returns the virtual GPU of the result: the keyword argument `device`, or, if there is no such argument, `gpu`,
    the virtual GPU of the operands. Returns None if the result is not on a virtual GPU."""
    wanted = kwargs.get("device")
    if wanted is None:
        return gpu
    wanted = torch.device(wanted)
    if wanted.type != NAME:
        return None
    return torch.device(NAME, getattr(torch, NAME)._index(wanted))


def _replaced(value: Any, hosts: dict[int, torch.Tensor]) -> Any:
    """Returns an argument in which each tensor on a virtual GPU is replaced by the corresponding tensor on the host.
    `hosts` maps the `id` of each tensor on a virtual GPU to the corresponding tensor on the host."""
    if isinstance(value, torch.Tensor):
        return hosts.get(id(value), value)
    if type(value) in (list, tuple):
        return type(value)([_replaced(item, hosts) for item in value])
    return value


def _host_keywords(kwargs: dict[str, Any], hosts: dict[int, torch.Tensor]) -> dict[str, Any]:
    """Returns the keyword arguments for a call of an operation on the host. Raises RuntimeError if they request pinned
    memory on a virtual GPU."""
    keywords = {name: _replaced(value, hosts) for name, value in kwargs.items()}
    wanted = keywords.get("device")
    if wanted is not None and torch.device(wanted).type == NAME:
        keywords["device"] = _HOST
        if keywords.get("pin_memory"):
            raise _not_pinned()
    return keywords


def _not_pinned() -> Exception:
    """Returns the error for pinned memory on a virtual GPU. Its text follows that of CUDA's error."""
    return RuntimeError(f"cannot pin a tensor of {NAME}: only dense CPU tensors can be pinned")


def _wrapped(
    result: Any,
    gpu: torch.device,
    operands: dict[int, torch.Tensor] = _NOTHING,
    storages: dict[int, Any] = _NOTHING,
) -> Any:
    """Returns the result of an operation on the host as tensors on the virtual GPU `gpu`. An operand that was written
    in place, or passed as `out=`, is returned itself. `operands` maps the `id` of an operand's tensor on the host to
    the operand. A view of an operand has the operand's storage. `storages` maps the `id` of the storage on the host to
    the operand's storage."""
    if isinstance(result, torch.Tensor):
        if id(result) in operands:
            return operands[id(result)]
        storage = None
        if storages and result.layout is _STRIDED:
            storage = storages.get(id(result.untyped_storage()))
        return _marked_as(result, placed(result, gpu, storage))
    if type(result) in (list, tuple):
        return type(result)([_wrapped(item, gpu, operands, storages) for item in result])
    return result


def _follow_shape(x: torch.Tensor, host: torch.Tensor) -> None:
    """After an operation, sets the shape and memory of `x` to those of `host`, its tensor on the host: `unsqueeze_`,
    `resize_`, `set_` and `out=` may have changed the shape or the memory of `host`."""
    # the indices and values of a sparse tensor may be new tensors
    if host.layout is not _STRIDED:
        set_data(x, placed(host, x.device))
        return
    # if the shape is the same, so is the memory: a `set_` that changes only the memory has a
    # kernel of its own (`_set`)
    if (
        x.size() == host.size()
        and x.stride() == host.stride()
        and x.storage_offset() == host.storage_offset()
    ):
        return
    storage, memory = x.untyped_storage(), host.untyped_storage()
    memory_before = storage.host.untyped_storage()  # type: ignore[attr-defined]
    # the storage of `x` remains the same unless the operation has allocated new or more memory,
    # which it may also do for the same storage object
    is_same = (
        memory_before is memory
        and storage.data_ptr() == memory.data_ptr()
        and storage.nbytes() == memory.nbytes()
    )
    set_data(x, placed(host, x.device, storage if is_same else None))


set_data = torch.Tensor.data.__set__  # type: ignore[attr-defined]


# layouts


def _placed_sparse(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a sparse COO tensor on a virtual GPU. Its indices and values share memory with the indices and values of
    `host`. Raises `UnsupportedError` for other sparse layouts."""
    if host.layout is not torch.sparse_coo:
        raise _unsupported(str(host.layout).removeprefix("torch."))
    parts = [placed(part, device) for part in (_indices.default(host), _values.default(host))]
    properties = {
        "dtype": host.dtype,
        "layout": host.layout,
        "device": device,
        "is_coalesced": host.is_coalesced(),
    }
    # PyTorch creates the tensor on the current device
    with getattr(torch, NAME).device(device):
        new: torch.Tensor = _make_sparse.default.redispatch(
            _sparse_keys(),
            host.sparse_dim(),
            host.dense_dim(),
            host.size(),
            *parts,
            **properties,
        )
    return new


def _sparse_on_host(x: torch.Tensor) -> torch.Tensor:
    """Returns a sparse COO tensor on the host. Its indices and values share memory with the indices and values of
    `x`."""
    keys = _sparse_keys()
    # uses the host's keys, because otherwise PyTorch would pass these operations to `run`,
    # which calls this function
    indices, values = (
        on_host(part.default.redispatch(keys, x)) for part in (_indices, _values)
    )
    is_coalesced = _aten.is_coalesced.default.redispatch(keys, x)
    return torch.sparse_coo_tensor(
        indices, values, x.size(), is_coalesced=is_coalesced, check_invariants=False
    )


def _refuse_compressed(*parts: Any, layout: Any = None, **kwargs: Any) -> Any:
    """The kernel for operations that create a sparse tensor with a compressed layout, such as CSR. Always raises
    `UnsupportedError` with the name of the layout."""
    raise _unsupported(
        "sparse compressed" if layout is None else str(layout).removeprefix("torch.")
    )


@cache
def _sparse_keys() -> Any:
    """Returns the key under which the host's kernels for sparse tensors are registered in PyTorch."""
    return _keys(_key.SparseCPU)


_zero, _pin = (
    private["torch.ops.aten._efficientzerotensor"],
    private["torch.ops.aten._pin_memory"],
)
_packed = private["torch.ops.aten._pack_padded_sequence"]
_operation_names = private["torch._C._dispatch_get_all_op_names"]
_schema_of = private["torch._C._get_schema"]
_has_kernel = private["torch._C._dispatch_has_kernel_for_dispatch_key"]
_make_sparse = private["torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors"]
_make_compressed = private["torch.ops.aten._sparse_compressed_tensor_unsafe"]
_indices, _values = private["torch.ops.aten._indices"], private["torch.ops.aten._values"]


def _unsupported(kind: str) -> Exception:
    """Returns the error for tensors of a kind that virtual GPUs do not support, such as "quantized"."""
    return UnsupportedError(
        f"torch's virtual GPUs do not support {kind} tensors; keep them on the CPU, or make them dense"
    )


def _refusing(kind: str) -> Callable[..., Any]:
    """Returns a kernel that raises `UnsupportedError` for every operation on tensors of this kind."""

    def refuse(op: Any, *args: Any, **kwargs: Any) -> Any:
        """Raises `UnsupportedError` for the operation `op`."""
        raise _unsupported(kind)

    return refuse


# registration


def register() -> list[torch.library.Library]:
    """Registers the kernels of virtual GPUs with PyTorch, and returns the libraries that contain these kernels. PyTorch
    removes the kernels when nothing refers to the libraries any more."""
    global _CPU
    _CPU = _keys(_key.CPU)
    # "_" stands for the operations of all libraries. PrivateUse1 is PyTorch's key for the devices
    # that a package adds
    everything, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    for key in ("PrivateUse1", "SparsePrivateUse1"):
        everything.fallback(run, key)
    everything.fallback(_refusing("sparse compressed"), "SparseCsrPrivateUse1")
    everything.fallback(_refusing("strided nested"), "NestedTensorPrivateUse1")
    everything.fallback(_refusing("quantized"), "QuantizedPrivateUse1")
    # autocast has no rules for virtual GPUs, so an operation continues to its kernel
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    # these kernels are not registered for sparse tensors, which have no storage
    of_storages = {
        "as_strided": _as_strided,
        "view": _view,
        "set_.source_Storage_storage_offset": _set,
        # the tensor becomes a vector of all the elements in the storage
        "set_.source_Storage": lambda x, storage: _set(
            x, storage, offset=0, size=(storage.nbytes() // x.itemsize,)
        ),
        "set_.source_Tensor": lambda x, y: _set(
            x, y.untyped_storage(), y.storage_offset(), y.size(), y.stride()
        ),
    }
    by_name = {
        # the zero of forward-mode derivatives has no memory, which the host's kernels need
        _zero.__name__: partial(run, _aten.zeros.default),
        _pin.__name__: _refuse_pinning,
        "is_pinned": lambda x, device=None: False,
        _packed.__name__: _pack,
        **of_storages,
    }
    # the kernels above take precedence
    for name in _composed():
        if name not in by_name:
            by_name[name] = _kernel_by_name(name)
    for name, kernel in by_name.items():
        aten.impl(name, kernel, "PrivateUse1")
        if name not in of_storages:
            aten.impl(name, kernel, "SparsePrivateUse1")
    # these operations return views, so `_composed` omits them, but PyTorch's default kernels
    # for them only raise an error
    for name in ("indices", "values"):
        aten.impl(name, _kernel_by_name(name), "SparsePrivateUse1")
    # moving a compressed tensor from the host calls this operation with the tensor's parts, and
    # not the fallback
    aten.impl(_make_compressed.__name__, _refuse_compressed, "SparseCsrPrivateUse1")
    # the device uses the host's memory, so nothing needs to be pinned; PyTorch would ask the
    # device for an allocator
    aten.impl(_pin.__name__, lambda x, device=None: x.clone(), "CPU")
    aten.impl("is_pinned", lambda x, device=None: False, "CPU")
    # these kernels replace autograd's own kernels, because they call other operations, which record gradients
    by_parts = {"ctc_loss.Tensor": _ctc_loss}
    for op in (_aten.lstm.input, _aten.lstm.data, _aten.gru.input, _aten.gru.data, _aten.lstm_cell.default,
               _aten.gru_cell.default):  # fmt: skip
        by_parts[op.name().removeprefix("aten::")] = _recurrent(op)
    for name, kernel in by_parts.items():
        aten.impl(name, kernel, "AutogradPrivateUse1")
        aten.impl(name, kernel, "PrivateUse1")  # inference mode bypasses autograd
    return [everything, aten]


_COMPOSED = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
"""The keys of kernels that compute an operation with other operations. PyTorch uses such a kernel on every device that
lacks its own kernel for the operation."""


def _composed() -> Iterator[str]:
    """Yields the names, such as "add.Tensor", of the operations that PyTorch would compute with
    other operations, except operations that return views."""
    # a full name is, for example, "aten::add.Tensor"
    for full_name in _operation_names():
        # an operation that has a kernel for this device needs no other kernel
        if not full_name.startswith("aten::") or _has_kernel(full_name, "PrivateUse1"):
            continue
        if any(_has_kernel(full_name, key) for key in _COMPOSED):
            name, _, overload = full_name.partition(".")
            returns = _schema_of(name, overload).returns
            # a result that shares memory with an argument but is not written is a view
            if not any(r.alias_info is not None and not r.alias_info.is_write for r in returns):
                yield full_name.removeprefix("aten::")


def _kernel_by_name(name: str) -> Callable[..., Any]:
    """Returns a kernel that carries out the operation with this name, such as "add.Tensor", by calling `run`."""
    packet, _, overload = name.partition(".")
    op = None

    def kernel(*args: Any, **kwargs: Any) -> Any:
        """Carries out the operation."""
        nonlocal op
        # the operation is looked up only at the first call, because looking up all operations
        # takes half a second
        if op is None:
            op = getattr(getattr(_aten, packet), overload or "default")
        return run(op, *args, **kwargs)

    return kernel


def _as_strided(x: torch.Tensor, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    """The kernel of `as_strided`: returns a view of `x`."""
    if _is_forked:
        raise _in_fork()
    return _set_view(_CPU, x, size, stride, storage_offset)


_set_view = _aten.as_strided.default.redispatch
"""Calls the kernel of `as_strided` that is registered under a given key. It is used to call the
host's kernel instead of the kernel of virtual GPUs."""


def _set(x: torch.Tensor, storage: Any, offset: int, size: Any, stride: Any = ()) -> Any:
    """The kernel of `set_`: sets the storage, offset and shape of `x`, and returns `x`."""
    return _set_storage(_CPU, x, storage, offset, size, stride)


def _view(x: torch.Tensor, size: Any) -> Any:
    """The kernel of `view`: returns a view of `x` with another shape."""
    if _is_forked:
        raise _in_fork()
    return _set_shape(_CPU, x, size)


_set_shape = _aten.view.default.redispatch
"""Calls the kernel of `view` that is registered under a given key. It is used to call the
host's kernel instead of the kernel of virtual GPUs."""


def _refuse_pinning(x: torch.Tensor, device: Any = None) -> torch.Tensor:
    """The kernel of `pin_memory` for tensors on virtual GPUs: always raises RuntimeError."""
    raise _not_pinned()


def _pack(x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
    """The kernel of `_pack_padded_sequence`: returns the packed values on the virtual GPU, and the batch sizes on the
    host. Like CUDA, raises RuntimeError if the lengths are not on the host."""
    if lengths.device.type != "cpu":
        raise RuntimeError(
            f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.dim()}D {lengths.device} tensor"
        )
    data, sizes = _packed.default(on_host(x), lengths, batch_first)
    return placed(data, x.device), sizes


def _recurrent(op: Any) -> Callable[..., Any]:
    """Returns a kernel for `op`, an operation of a recurrent layer. The kernel moves the
    tensors to the host and the results back to the GPU, and both moves are recorded for
    gradients. PyTorch's own kernel would choose the fused kernels of a GPU."""
    facts = _Facts(op)

    def kernel(*args: Any) -> Any:
        """Computes `op` on the host, and returns the results on the virtual GPU of the first
        tensor that is on a virtual GPU."""
        tensors = [*_tensors(args)]
        gpu = next(x.device for x in tensors if x.device.type == NAME)
        # before the move to the host, after which all tensors would be on one device
        _check_devices(op, facts, tensors, args, kwargs={})
        # autocast for the CPU does not apply to a GPU
        with torch.autocast("cpu", enabled=False):
            results = op(*trees.replaced(torch.Tensor, lambda x: x.to(_HOST), args))
        return trees.replaced(torch.Tensor, lambda x: x.to(gpu), results)

    return kernel


def _ctc_loss(
    scores: Any,
    targets: Any,
    lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    *settings: Any,
) -> Any:
    """Returns the CTC loss, computed with the lengths as ints, as PyTorch does on CUDA.
    Otherwise PyTorch would divide by the tensors of lengths, which are on the host."""

    return _aten.ctc_loss.IntList(
        scores, targets, lengths.tolist(), target_lengths.tolist(), *settings
    )
