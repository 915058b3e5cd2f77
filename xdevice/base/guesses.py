"""Advice for the errors about names that xdevice does not have. The advice says what to use instead. This module is
imported only when a name is missing.

The tables list names from PyTorch, JAX, TensorFlow, Keras, MXNet, PaddlePaddle, accelerate and d2l, for features that
xdevice has under another name or deliberately leaves to the framework.
"""

from __future__ import annotations

from importlib import import_module

from .dtypes import DTYPES

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from typing import Final

# advice that several names share
_DTYPE: Final = 'write the dtype as a string, the same on every backend: dtype="{name}"'
_FRAMEWORK: Final = (
    "models and layers with weights belong to the framework; xdevice moves and compares them"
)

_REPLACEMENTS: Final = {
    "device_count": "xdevice.num_gpus()",
    "is_available": "xdevice.num_gpus() > 0; xdevice.try_gpu() returns a GPU if there is one, otherwise the CPU",
    "list_physical_devices": "xdevice.devices()",
    "list_logical_devices": "xdevice.devices()",
    "local_devices": "xdevice.devices()",
    "current_accelerator": "xdevice.try_gpu()",
    "current_device": "xdevice.device(), the device on which tensors are created",
    "get_default_device": "xdevice.device(), the device on which tensors are created",
    "default_device": "`with xdevice.gpu():` for a block, xdevice.set_default_device(device) from here on",
    "set_device": "xdevice.set_default_device(device), or `with device:` for a block",
    "device_put": "xdevice.to_device(x, device)",
    "to": "xdevice.to_device(x, device)",
    "as_in_ctx": "xdevice.to_device(x, device)",
    "device_get": "xdevice.to_numpy(x)",
    "numpy": "xdevice.to_numpy(x)",
    "asnumpy": "xdevice.to_numpy(x)",
    "clone": "xdevice.copy_to(x, device)",
    "copy": "xdevice.copy_to(x, device)",
    "context": "xdevice.device",
    "ctx": "xdevice.device",
    "synchronize": "xdevice.sync()",
    "block_until_ready": "xdevice.sync(x)",
    "waitall": "xdevice.sync()",
    "manual_seed": "xdevice.random.seed(n); xdevice.random.seed_all(n) seeds the frameworks too",
    "manual_seed_all": "xdevice.random.seed_all(n)",
    "seed": "xdevice.random.seed(n); xdevice.random.seed_all(n) seeds the frameworks too",
    "set_seed": "xdevice.random.seed_all(n)",
    "seed_everything": "xdevice.random.seed_all(n)",
    "set_random_seed": "xdevice.random.seed_all(n)",
    "PRNGKey": "xdevice.random.seed(n): generators in xdevice have no keys",
    "key": "xdevice.random.seed(n): generators in xdevice have no keys",
    "get_rng_state": "xdevice.random.get_state()",
    "set_rng_state": "xdevice.random.set_state(state)",
    "rand": "xdevice.random.uniform(2, 3)",
    "randn": "xdevice.random.normal(2, 3)",
    "randint": "xdevice.random.integers(2, 3, high=10)",
    "randperm": "xdevice.random.permutation(n)",
    "shuffle": "xdevice.random.permutation(n), or xdevice.math.batches(x, size, shuffle=True)",
    "use_deterministic_algorithms": "`with xdevice.math.deterministic():`",
    "enable_op_determinism": "`with xdevice.math.deterministic():`",
    "no_grad": "operations are recorded only in xdevice.math.value_and_grad; there, use xdevice.math.stop_gradient(x)",
    "enable_grad": "xdevice.math.value_and_grad(function)",
    "inference_mode": "operations are recorded only in xdevice.math.value_and_grad",
    "detach": "xdevice.math.stop_gradient(x)",
    "backward": "value, gradients = xdevice.math.value_and_grad(function)(x)",
    "GradientTape": "value, gradients = xdevice.math.value_and_grad(function)(x)",
    "autograd": "xdevice.math.value_and_grad(function)",
    "jit": "xdevice.compile(function)",
    "function": "xdevice.compile(function)",
    "to_static": "xdevice.compile(function)",
    "hybridize": "xdevice.compile(function)",
    "autocast": "use the framework's own mixed precision, such as torch.autocast: see docs/guides/mixed_precision.md",
    "amp": "use the framework's own mixed precision, such as torch.amp: see docs/guides/mixed_precision.md",
    "GradScaler": "use the framework's own mixed precision, such as torch.amp: see docs/guides/mixed_precision.md",
    "vmap": "use the framework's own vmap, or write the function for tensors with a batch axis",
    "pmap": "xdevice.parallel.replicate and xdevice.parallel.run, or xdevice.distributed for several processes",
    "pin_memory": "xdevice.to_device(x, device), which copies large tensors through page-locked memory",
    "empty_cache": "xdevice.accelerator.empty_cache()",
    "memory_allocated": "xdevice.memory(device).allocated",
    "max_memory_allocated": "xdevice.memory(device).peak",
    "memory_stats": "xdevice.memory(device)",
    "memory_reserved": "xdevice.memory(device).allocated; only the framework itself reports the memory it has reserved",
    "mem_get_info": "xdevice.memory(device).free and .total",
    "get_memory_info": "xdevice.memory(device)",
    "get_device_name": "xdevice.memory(device).name",
    "get_device_properties": "xdevice.memory(device), whose result has the attributes name and total",
    "get_device_capability": "xdevice.accelerator.is_dtype_supported(dtype, device); all else is vendor-specific",
    "current_stream": "xdevice.accelerator.Stream.current(device)",
    "stream": "`with xdevice.accelerator.Stream(device):`",
    "CUDAGraph": "xdevice.accelerator.make_graphed_callable(task)",
    "graph": "xdevice.accelerator.make_graphed_callable(task)",
    "cuda": "xdevice.gpu(i), for GPUs of all vendors; xdevice.to_device(x, 'gpu:0') moves a tensor",
    "mps": "xdevice.gpu(), for GPUs of all vendors",
    "xpu": "xdevice.gpu(i), for GPUs of all vendors",
    "npu": "xdevice.gpu(i), for GPUs of all vendors",
    "CUDAPlace": "xdevice.gpu(i)",
    "CPUPlace": "xdevice.cpu()",
    "Tensor": "tensors belong to the framework; to create a tensor, call xdevice.tensor(data)",
    "array": "xdevice.tensor(data)",
    "asarray": "xdevice.tensor(data), which copies; xdevice.array_namespace(x).asarray may share memory",
    "as_tensor": "xdevice.tensor(data), which always copies",
    "from_numpy": "xdevice.tensor(array), which always copies",
    "to_tensor": "xdevice.tensor(data)",
    "constant": "xdevice.tensor(data)",
    "convert_to_tensor": "xdevice.tensor(data)",
    "Variable": "models and their parameters belong to the framework; xdevice moves and compares them",
    "Parameter": "models and their parameters belong to the framework; xdevice moves and compares them",
    "from_dlpack": "xdevice.convert(x, backend)",
    "is_tensor": "xdevice.device_of(x), which raises NotATensorError if x is not a tensor",
    "cat": "xdevice.array_namespace(x).concat",
    "concatenate": "xdevice.array_namespace(x).concat",
    "transpose": "xdevice.array_namespace(x).permute_dims",
    "masked_fill": "xdevice.array_namespace(x).where",
    "clamp": "xdevice.array_namespace(x).clip",
    "set_default_dtype": "pass the dtype when you create a tensor: xdevice.zeros(2, dtype='float16')",
    "set_floatx": "pass the dtype when you create a tensor: xdevice.zeros(2, dtype='float16')",
    "state_dict": "the framework's state_dict, or xdevice.models.convert_state(model, backend) for another framework",
    "load_state_dict": "xdevice.load(state, into=model)",
    "load_state": "xdevice.load(state, into=model)",
    "load_weights": "xdevice.load(path, into=model)",
    "save_weights": "xdevice.save(path, model)",
    "Module": _FRAMEWORK,
    "Layer": _FRAMEWORK,
    "Model": _FRAMEWORK,
    "Sequential": _FRAMEWORK,
    "Linear": f"to compute with your own weights, write xp.matmul(x, weight) + bias; {_FRAMEWORK}",
    "DataLoader": "xdevice.math.batches(arrays, size, shuffle=True), and xdevice.prefetch(batches, device)",
    "DataParallel": "xdevice.parallel.replicate, split_batch and parallel.all_reduce",
    "data_parallel": "xdevice.parallel.replicate, split_batch and parallel.all_reduce",
    "DistributedDataParallel": "world.averaging(model) in `with xdevice.distributed.processes() as world:`",
    "MirroredStrategy": "xdevice.parallel.replicate, split_batch and parallel.all_reduce",
    "Accelerator": "docs/guides/from_accelerate.md lists a replacement for each of its methods",
    "prepare": "xdevice.to_device for models, xdevice.prefetch for batches: docs/guides/from_accelerate.md",
    "init_process_group": "`with xdevice.distributed.processes() as world:`",
    "init": "`with xdevice.distributed.processes() as world:`",
    "rank": "world.rank in `with xdevice.distributed.processes() as world:`",
    "get_rank": "world.rank in `with xdevice.distributed.processes() as world:`",
    "local_rank": "xdevice.distributed.local_device(), the device of this process",
    "get_world_size": "world.size in `with xdevice.distributed.processes() as world:`",
    "barrier": "world.barrier() in `with xdevice.distributed.processes() as world:`",
    "reduce_scatter": "world.reduce_scatter(x) in `with xdevice.distributed.processes() as world:`",
    "allreduce": "xdevice.parallel.all_reduce(tensors), or world.all_reduce(x) with several processes",
    "split_and_load": "xdevice.split_batch(batch, devices)",
    "set_visible_devices": "set CUDA_VISIBLE_DEVICES in the environment, before the framework starts",
    "transfer_guard": "xdevice.transfers()",
    "use": "`with xdevice.use_backend(name):`",
    "current_backend": "xdevice.backend()",
    "get_backend": "xdevice.backend()",
    "register": "xdevice.register_container(type)",
    "register_pytree_node": "xdevice.register_container(type)",
    "record": "xdevice.parity.log(name, value)",
    "trace": "xdevice.parity.capture_intermediates(model) for the outputs of layers; for the sum of a diagonal, "
    "xdevice.array_namespace(x).linalg.trace",
    "capture": "xdevice.accelerator.make_graphed_callable(task)",
    "supports": "xdevice.accelerator.is_dtype_supported(dtype, device)",
    "allclose": "xdevice.assert_parity(a, b), or xdevice.parity.compare(a, b).ok",
    "assert_close": "xdevice.assert_parity(a, b)",
    "assert_allclose": "xdevice.assert_parity(a, b)",
    "profiler": "xdevice.measure(function) for times, xdevice.transfers() for copies, or the framework's profiler",
}
# the public modules whose names users may write without the module, such as `xdevice.Stream`
_FACES: Final = (
    "accelerator distributed errors math models native nn optim parallel parity random"
)
_STANDARD: Final = """
abs add all any arange argmax argmin argsort astype broadcast_to ceil clip concat cos cumulative_sum divide empty
empty_like equal exp expand_dims eye flip floor full full_like greater isfinite isinf isnan less linspace log matmul
max maximum mean meshgrid min minimum multiply nonzero ones_like outer permute_dims pow prod repeat reshape result_type
roll round searchsorted sign sin sort sqrt square squeeze stack std subtract sum take tan tanh tensordot tile tril triu
unstack unique_values var vecdot where zeros_like
"""
"""Functions of the Python Array API standard, which `xdevice.array_namespace(x)` contains."""


def message_for(name: str, public: list[str]) -> str:
    """Returns the message of the `AttributeError` for a name that `xdevice` does not have. `public` lists all public
    names of `xdevice`."""
    missing = f"module 'xdevice' has no attribute {name!r}"
    # tools look such names up, as in `hasattr(xdevice, "__wrapped__")`, and need no advice
    if name.startswith("_"):
        return missing
    # `name` is a name that another library uses, or a misspelling
    advice = _replacement(name) or _nearest(name, public)
    return f"{missing}: {advice}" if advice else missing


def _replacement(name: str) -> str | None:
    """Returns advice that says what to write instead of `name`, a name that another library uses. Returns None if no
    table of this module lists the name."""
    if name in _REPLACEMENTS:
        replacement = _REPLACEMENTS[name]
        # an entry that is code needs a "use" in front; the other entries are phrases of their own
        return (
            f"use {replacement}"
            if replacement.startswith(("xdevice.", "`with", "value, ", "world."))
            else replacement
        )
    if name in DTYPES:
        return _DTYPE.format(name=name)
    face = next((face for face in _FACES.split() if name in _names_of(face)), None)
    if face is not None:
        return f"use xdevice.{face}.{name}"
    if name in _STANDARD.split():
        return f"use xdevice.array_namespace(x).{name}, which is its name in the Array API standard"
    return None


def _names_of(face: str) -> list[str]:
    """Returns the public names of the module `xdevice.<face>`, or an empty list if that module is not installed."""
    try:
        return dir(import_module(f"xdevice.{face}"))
    except ModuleNotFoundError:
        # a copy of xdevice that consists only of the device layer lacks these modules, and works without
        # them
        return []


def _nearest(name: str, public: list[str]) -> str | None:
    """Returns advice for a misspelt name, based on the most similar name among xdevice's names (`public`) and the names
    of other libraries. Returns None if no name is similar."""
    from difflib import get_close_matches

    # 0.8 allows about one wrong letter in five; a lower limit would suggest unrelated names
    alike = get_close_matches(name, [*public, *_REPLACEMENTS], n=1, cutoff=0.8)
    if not alike:
        return None
    return (
        _replacement(alike[0])
        if alike[0] in _REPLACEMENTS
        else f"did you mean xdevice.{alike[0]}?"
    )
