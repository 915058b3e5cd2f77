"""Tables of the uses of devices that `scan` counts and `port` judges. Each row lists names of a framework, with a code,
and with the way to rewrite a use of these names.

`rule` is the name of the function in `rules_of_calls` or `rules_of_methods` that judges the
use, and `text` is the new text that the rule writes. `text` contains no quotes, colons or
backslashes, so that it can be inserted into any f-string, even before Python 3.12.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Idiom:
    """One kind of use of a device. `name` is its name in reports, `code` is its key in `sites.CODES`, `rule` is the
    name of the rule that judges it, and `text` is the new text that the rule writes. If there is no vendor-neutral
    replacement, `why` is the reason that reports show, and `link` is a page of the documentation to read, or "".

    Idioms that are not in the tables, such as the idiom for `device="cuda"`, are created and judged in `rules`. For
    these, `rule` is only a label.
    """

    name: str
    code: str
    rule: str
    text: str = ""
    why: str = ""
    link: str = ""


def _calls(
    code: str, rule: str, text: str, names: str, why: str = "", link: str = ""
) -> dict[str, Idiom]:
    """Returns a table that maps full names to idioms. The names in `names` are separated by
    white space. The other arguments are fields that all these idioms share."""
    idioms = {}
    for name in names.split():
        shown = re.sub(r"^d2l\.\w+\.", "d2l.", name)  # the same name in all of d2l's tabs
        idioms[name] = Idiom(shown, code, rule, text, why, link)
    return idioms


def _methods(code: str, rule: str, text: str, names: str, why: str = "") -> dict[str, Idiom]:
    """Returns a table that maps names of methods to idioms. The names in `names` are separated
    by white space. The other arguments are fields that all these idioms share."""
    return {name: Idiom(f".{name}()", code, rule, text, why) for name in names.split()}


_WRAPPERS: Final = (
    "no neutral replacement; split_batch, replicate and all_reduce do the same, step by step"
)
_GUIDE: Final = "docs/guides/wrappers.md"
_MIXED: Final = "docs/guides/mixed_precision.md"

CALLS: Final[dict[str, Idiom]] = {
    # choosing devices
    # if the text is empty, the rule creates the new text, which depends on the arguments
    **_calls("XD101", "torch_device", "", "torch.device"),
    **_calls("XD101", "accelerator", "xdevice.native.gpu()", "torch.accelerator.current_accelerator"),
    **_calls("XD101", "device_with_index", "xdevice.native.gpu", """
        mxnet.gpu mxnet.npx.gpu mxnet.context.gpu mxnet.device.gpu paddle.CUDAPlace d2l.mxnet.gpu d2l.torch.gpu
        d2l.paddle.gpu d2l.jax.gpu
    """),
    **_calls("XD101", "device_with_index", "xdevice.native.cpu", """
        mxnet.cpu mxnet.npx.cpu mxnet.context.cpu mxnet.device.cpu paddle.CPUPlace d2l.mxnet.cpu d2l.torch.cpu
        d2l.paddle.cpu d2l.jax.cpu
    """),
    **_calls("XD101", "renamed", "xdevice.native.try_gpu", """
        d2l.torch.try_gpu d2l.mxnet.try_gpu d2l.paddle.try_gpu d2l.jax.try_gpu
    """),
    **_calls("XD101", "renamed", "xdevice.native.try_all_gpus", """
        d2l.torch.try_all_gpus d2l.mxnet.try_all_gpus d2l.paddle.try_all_gpus d2l.jax.try_all_gpus
    """),
    **_calls("XD101", "helper_scope", "xdevice.try_gpu", "d2l.tensorflow.try_gpu"),
    **_calls("XD101", "helper_scope", "xdevice.gpu", "d2l.tensorflow.gpu"),
    **_calls("XD101", "helper_scope", "xdevice.cpu", "d2l.tensorflow.cpu"),
    **_calls("XD101", "scope", "", "tensorflow.device"),
    **_calls("XD101", "no_word", "", """
        d2l.tensorflow.try_all_gpus mxnet.Context mxnet.context.Context
    """, "no neutral replacement for this list or object of the framework"),
    # counting devices
    **_calls("XD102", "replaced", "xdevice.num_gpus() > 0", """
        torch.cuda.is_available torch.accelerator.is_available tensorflow.test.is_gpu_available
    """),
    **_calls("XD102", "replaced", "xdevice.num_gpus()", """
        torch.cuda.device_count torch.accelerator.device_count mxnet.npx.num_gpus mxnet.context.num_gpus
        mxnet.device.num_gpus paddle.device.cuda.device_count d2l.torch.num_gpus d2l.mxnet.num_gpus
        d2l.tensorflow.num_gpus d2l.paddle.num_gpus d2l.jax.num_gpus
    """),
    # these test how the framework was built. A machine without GPUs may also have a CUDA build, so the new text is
    # never proven
    **_calls("XD102", "asks_build", "xdevice.num_gpus() > 0", """
        paddle.is_compiled_with_cuda paddle.device.is_compiled_with_cuda tensorflow.test.is_built_with_cuda
    """),
    **_calls("XD102", "device_list", "", """
        tensorflow.config.list_physical_devices tensorflow.config.experimental.list_physical_devices
        tensorflow.config.list_logical_devices jax.devices
    """),
    **_calls("XD102", "device_count", "xdevice.num_gpus()", "jax.device_count"),
    # moving, waiting, reading, timing, splitting, memory
    **_calls("XD103", "put_on_device", "xdevice.to_device", "jax.device_put"),
    **_calls("XD105", "wait", "xdevice.sync", """
        torch.cuda.synchronize torch.accelerator.synchronize mxnet.npx.waitall mxnet.nd.waitall
        mxnet.ndarray.waitall mxnet.waitall paddle.device.cuda.synchronize paddle.device.synchronize
    """),
    **_calls("XD106", "renamed", "xdevice.to_numpy", """
        d2l.torch.numpy d2l.mxnet.numpy d2l.tensorflow.numpy d2l.paddle.numpy d2l.jax.numpy
    """),
    **_calls("XD108", "renamed", "xdevice.Timer", """
        d2l.torch.Timer d2l.mxnet.Timer d2l.tensorflow.Timer d2l.paddle.Timer d2l.jax.Timer
    """),
    **_calls("XD108", "renamed", "xdevice.Benchmark", """
        d2l.torch.Benchmark d2l.mxnet.Benchmark d2l.tensorflow.Benchmark d2l.paddle.Benchmark d2l.jax.Benchmark
    """),
    **_calls("XD109", "split_and_load", "xdevice.split_batch", "mxnet.gluon.utils.split_and_load"),
    **_calls("XD109", "split_batch", "xdevice.split_batch", """
        d2l.torch.split_batch d2l.mxnet.split_batch d2l.paddle.split_batch
    """),
    **_calls("XD109", "scatter", "xdevice.split_batch", "torch.nn.parallel.scatter"),
    # the text is an attribute of the result of `xdevice.memory`
    **_calls("XD110", "memory", "allocated", """
        paddle.device.cuda.memory_allocated
    """),
    **_calls("XD110", "memory", "peak", """
        paddle.device.cuda.max_memory_allocated
    """),
    **_calls("XD151", "current_device", "xdevice.set_default_device", "paddle.set_device paddle.device.set_device"),
    **_calls("XD110", "no_word", "", "torch.cuda.memory_allocated torch.cuda.max_memory_allocated"),
    # names that are already right on the devices of any vendor
    **_calls("XD151", "neutral", "", """
        torch.accelerator.set_device_index torch.accelerator.set_device_idx torch.accelerator.current_device_index
        torch.accelerator.device_index torch.accelerator.current_stream torch.accelerator.set_stream
        torch.accelerator.empty_cache torch.accelerator.memory_allocated torch.accelerator.max_memory_allocated
    """, "PyTorch's own vendor-neutral name"),
    # names without a neutral replacement
    **_calls("XD151", "no_word", "", """
        torch.cuda.set_device torch.cuda.current_device torch.set_default_device torch.get_default_device
        torch.set_default_tensor_type torch.cuda.device
        paddle.get_device paddle.device.get_device
        mxnet.current_context mxnet.context.current_context mxnet.npx.current_device
        tensorflow.config.set_soft_device_placement torch.cuda.device_of
    """, "sets or asks for the default device; `with device:` sets it for a block"),
    **_calls("XD152", "neutral", "", """
        mxnet.cpu_pinned mxnet.npx.cpu_pinned paddle.CUDAPinnedPlace mxnet.context.cpu_pinned
    """, "xdevice manages pinned memory itself"),
    **_calls("XD153", "no_word", "", """
        torch.nn.DataParallel torch.nn.parallel.DataParallel torch.nn.parallel.DistributedDataParallel
        torch.nn.parallel.gather torch.nn.parallel.replicate
        torch.nn.parallel.parallel_apply torch.nn.parallel.data_parallel
        torch.nn.parallel.DistributedDataParallelCPU torch.distributed.fsdp.fully_shard
        torch.distributed.fsdp.FullyShardedDataParallel torch.distributed.tensor.parallel.parallelize_module
        paddle.DataParallel gluoncv.utils.parallel.DataParallelModel tensorflow.distribute.OneDeviceStrategy
        tensorflow.distribute.MirroredStrategy tensorflow.distribute.TPUStrategy
        tensorflow.distribute.MultiWorkerMirroredStrategy
        tensorflow.distribute.experimental.CentralStorageStrategy
        tensorflow.distribute.experimental.MultiWorkerMirroredStrategy
        tensorflow.distribute.experimental.ParameterServerStrategy jax.pmap flax.jax_utils.replicate
        mxnet.kv.create
    """, _WRAPPERS, _GUIDE),
    **_calls("XD154", "no_word", "", """
        torch.autocast torch.amp.autocast torch.amp.GradScaler torch.cuda.amp.autocast torch.cuda.amp.GradScaler
        paddle.amp.auto_cast paddle.amp.GradScaler paddle.amp.decorate
        tensorflow.keras.mixed_precision.set_global_policy mxnet.contrib.amp.init mxnet.amp.init
    """, "leave this line: the framework's own mixed precision works with xdevice", _MIXED),
    **_calls("XD155", "no_word", "", """
        tensorflow.config.set_visible_devices tensorflow.config.set_logical_device_configuration
        tensorflow.config.get_visible_devices tensorflow.config.experimental.set_virtual_device_configuration
        tensorflow.config.experimental.list_logical_devices mxnet.test_utils.list_gpus jax.local_devices
        jax.local_device_count
    """, "lists or configures devices in the framework's own way"),
    **_calls("XD156", "no_word", "", """
        torch.cuda.is_bf16_supported torch.cuda.get_device_properties torch.cuda.get_device_name
        torch.cuda.get_device_capability torch.cuda.mem_get_info torch.cuda.memory_reserved
        torch.cuda.max_memory_reserved torch.cuda.memory_stats torch.cuda.memory_summary
        paddle.device.cuda.get_device_capability paddle.device.cuda.get_device_properties
        paddle.device.cuda.max_memory_reserved
        paddle.is_compiled_with_xpu torch.backends.mps.is_available
        torch.backends.mps.is_built torch.xpu.is_available torch.npu.is_available
        torch.distributed.is_nccl_available jax.default_backend torch.cuda.Event torch.cuda.Stream
        torch.cuda.current_stream torch.cuda.stream torch.xpu.memory_allocated torch.npu.memory_allocated
        torch.xpu.max_memory_allocated torch.npu.max_memory_allocated
    """, "a vendor-specific property"),
    **_calls("XD157", "no_word", "", """
        torch.cuda.empty_cache torch.xpu.empty_cache torch.npu.empty_cache
        torch.mps.empty_cache paddle.device.cuda.empty_cache tensorflow.config.experimental.set_memory_growth
        torch.cuda.reset_max_memory_allocated torch.xpu.reset_max_memory_allocated
        torch.npu.reset_max_memory_allocated torch.cuda.reset_peak_memory_stats torch.cuda.ipc_collect
    """, "manages the framework's own cache"),
    **_calls("XD158", "no_word", "", """
        torch.cuda.manual_seed torch.cuda.manual_seed_all torch.xpu.manual_seed_all torch.npu.manual_seed_all
    """, "xdevice.random draws different numbers than the framework's generator"),
}  # fmt: skip
"""Maps the full names under which functions and classes are called to their idioms."""

METHODS: Final[dict[str, Idiom]] = {
    **_methods("XD103", "to", "", "to as_in_ctx as_in_context as_in_device"),
    # the text is the name of the function that returns the device
    **_methods("XD103", "to_vendor", "xdevice.gpu", "cuda"),
    **_methods("XD103", "to_vendor", "xdevice.cpu", "cpu"),
    **_methods("XD103", "reset", "", "reset_ctx reset_device"),
    **_methods("XD104", "copy_to", "", "copyto"),
    **_methods("XD105", "sync", "xdevice.sync", "wait_to_read block_until_ready"),
    **_methods("XD106", "read", "xdevice.to_numpy", "numpy asnumpy"),
    **_methods("XD106", "read_as_list", "", "tolist"),
    **_methods("XD107", "read", "xdevice.item", "item asscalar"),
    **_methods("XD152", "neutral", "", "pin_memory", "xdevice manages pinned memory itself"),
}
"""Maps the names of methods of tensors and models to their idioms. These methods are ignored in
modules that import no framework."""

ONLY_MXNET: Final = {
    "as_in_ctx",
    "as_in_context",
    "asnumpy",
    "asscalar",
    "wait_to_read",
    "reset_ctx",
}
"""Methods that only MXNet's arrays and parameters have. If the module uses no package in `OTHER_ARRAYS`, the name alone
shows what the receiver is."""

DEVICE_KEYWORDS: Final = {
    "device",
    "ctx",
    "ctx_list",
    "context",
    "place",
    "places",
    "map_location",
    "num_gpus",
}
"""Keyword arguments that name the device on which an object is created or loaded."""

DEVICE_DEPENDENT_ATTRIBUTES: Final = {"device", "ctx", "context", "place", "is_cuda"}
"""Attributes whose value depends on the device of an object."""

OTHER_ARRAYS: Final = {"decord", "tvm", "dgl"}
"""Packages whose arrays have methods with the same names as methods of MXNet's arrays."""

DEVICE_MODULES: Final = OTHER_ARRAYS | {"torch", "paddle", "mxnet", "mx", "jax", "tf"}
"""Names of modules that have functions such as `cpu` and `gpu`. The names are listed because a
helper function may load the module, so that no import shows that the name is a module."""

D2L_HELPERS: Final = {
    "try_gpu",
    "try_all_gpus",
    "num_gpus",
    "gpu",
    "cpu",
    "evaluate_accuracy_gpu",
}
"""Names of d2l's helpers. If the project itself defines a function with one of these names, the
body of the function is rewritten, but not its calls."""

SETS_CURRENT_DEVICE: Final = set(
    """
    torch.cuda.set_device torch.accelerator.set_device_index torch.accelerator.set_device_idx
    torch.accelerator.device_index torch.cuda.device paddle.set_device paddle.device.set_device
    accelerate.Accelerator accelerate.PartialState deepspeed.initialize deepspeed.init_distributed lightning.Fabric
    horovod.torch.init
    """.split()
)
"""Calls after which "cuda" without an index may mean a GPU other than the first."""
