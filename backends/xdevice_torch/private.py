"""The private names of PyTorch that this adapter uses, and the attributes of PyTorch that it replaces, each by the
capability that needs it. Its other modules read them as `private["torch._C...."]`."""

from __future__ import annotations

from typing import Final

from xdevice.contract.private import Names, Private

TESTED: Final = "2.15.0"

READS: Final = (
    "item", "tolist", "numpy", "__array__", "__float__", "__int__", "__bool__", "__index__", "__complex__",
    "__repr__", "__format__", "__reduce_ex__",
)  # fmt: skip
"""Methods of a tensor through which the host reads it."""

IN_BLOCKS: Final = (
    # the layers that a model calls: a global hook of PyTorch's for modules sees neither what a call gives by its own
    # `__call__` nor that it failed
    Private("layers' calls", "torch.nn.Module", ("__call__",)),
    # reads and moves. A TorchFunctionMode sees one thread only, and misses what runs with a copy of the context in
    # another; it makes torch.compile compile its functions again
    Private("transfers", "torch.Tensor", (*READS, "to", "cpu", "cuda", "xpu")),
    # the same: `x.vgpu()`, as `x.cuda()`
    Private("transfers", "torch.Tensor", ("vgpu",), "virtual GPUs"),
)  # fmt: skip
"""Attributes that are replaced until the last block that needs them ends."""

FOR_GOOD: Final = (
    # `Module.to` sets it, and PyTorch does not put contents of one kind into a tensor of the other
    Private("virtual GPUs", "torch.Tensor", ("data",)),
    # the same: `Module.to` asks for it
    Private("virtual GPUs", "torch", ("_has_compatible_shallow_copy_type",)),
    # C++ takes index 0 instead of the tensor's own
    Private("virtual GPUs", "torch.Tensor", ("new", "new_tensor")),
    # a device without an index is the current one
    Private("virtual GPUs", "torch.Tensor", ("to",)),
    # the same
    Private("virtual GPUs", "torch", ("tensor", "as_tensor", "asarray")),
    # PyTorch asks the device for an allocator, and crashes
    Private("virtual GPUs", "torch.UntypedStorage", ("__new__",)),
    # `torch.accelerator` asks the device guard or an allocator, and fails or crashes
    Private(
        "virtual GPUs", "torch._C",
        tuple(f"_accelerator_{name}" for name in (
            "getDeviceIndex", "setDeviceIndex", "exchangeDevice", "maybeExchangeDevice", "synchronizeDevice",
            "isAllocatorInitialized", "getDeviceStats", "resetPeakStats", "resetAccumulatedStats", "getMemoryInfo",
            "setStream",
        )),
    ),
    # the same
    Private("virtual GPUs", "torch._C", ("_accelerator_emptyHostCache",), "newer"),
    # the same
    Private("virtual GPUs", "torch.accelerator", ("empty_cache",)),
    # PyTorch makes a foreign device's in C++ only
    Private("virtual GPUs", "torch", ("Generator",)),
    # DataParallel is refused by name
    Private("virtual GPUs", "torch.nn.parallel.comm", ("scatter", "gather", "broadcast_coalesced")),
    # the compiler has no code for them, and ends in a KeyError
    Private("virtual GPUs", "torch._TorchCompileInductorWrapper", ("__call__",)),
    # autograd's engine has no thread for index 1
    Private("virtual GPUs", "torch.autograd", ("_engine_run_backward",)),
    # "cuda" is a virtual GPU
    Private("--xd-cuda", "torch", ("set_default_device",)),
    # the same
    Private(
        "--xd-cuda", "torch.cuda",
        ("is_available", "device_count", "device", "current_device", "set_device", "synchronize", "get_rng_state",
         "set_rng_state", "memory_allocated", "max_memory_allocated"),
    ),
    # the same
    Private("--xd-cuda", "torch.backends.cuda", ("is_built",)),
)  # fmt: skip
"""Attributes that are replaced until the process ends."""

PRIVATE: Final = (
    # whether `torch.fx` would freeze numbers. The public way was proposed and not taken (pytorch/pytorch#43971)
    Private("random numbers", "torch.fx._symbolic_trace", ("is_fx_symbolic_tracing",)),
    # the same before 2.9
    Private("random numbers", "torch.fx._symbolic_trace", ("is_fx_tracing",), "older"),
    # whether a parameter was written in the block of `averaging`. Without it, a step there is not noticed
    Private("several processes", "torch.Tensor", ("_version",)),
    # handing registered containers on to PyTorch's pytrees. Without it they stay leaves there
    Private("containers", "torch.utils._pytree", ("register_pytree_node",)),
    # what a program has registered with PyTorch's pytrees, which have no public name. Without it, objects of types
    # that xdevice does not know are refused
    Private("containers", "torch.utils._pytree", ("SUPPORTED_NODES",)),
    # symbols in place of tensors, without values
    Private("conversion", "torch._subclasses", ("fake_tensor.FakeTensor", "functional_tensor.FunctionalTensor")),
    # the same in `torch.func`: reading `torch.func.functionalize`'s tensors gives garbage
    Private("conversion", "torch._C", ("_functorch.is_functorch_wrapped_tensor",)),
    # which modules move additional tensors
    Private("models", "torch.nn.Module", ("_apply",)),
    # which attribute is computed
    Private("models", "torch.nn.utils.prune.BasePruningMethod", ("_tensor_name",)),
    # whether a lazy device was started, for whose work one cannot wait. Without it, it counts as started once its
    # module is imported
    Private("waiting", "torch._C", ("_lazy._get_default_device_type",)),
    # whether a GPU is used, without starting it. Without it, waiting makes a context on each GPU of this process
    Private("waiting", "torch._C", ("_cuda_hasPrimaryContext",), "CUDA"),
    # seeing each operation of a thread. Without it, tensors are made and copied as if something saw them (documented,
    # in a module without a public name)
    Private(
        "blocking, compile, graphs and transfers", "torch.utils._python_dispatch",
        ("TorchDispatchMode", "_get_current_dispatch_mode_stack"),
    ),
    # recognizing the operations that read one value (`x.item()`) or copy a tensor (`x.to()`)
    Private("transfers", "torch.ops.aten", ("_local_scalar_dense", "_to_copy")),
    # whether `torch.func` transforms
    Private("gradients", "torch._C", ("_functorch.peek_interpreter_stack",)),
    # Adam in one kernel. Without it, in several
    Private("nn", "torch", ("_fused_adam_",)),
    # whether hooks change what a layer gives, and which attributes they compute
    Private("layers and models", "torch.nn.Module", ("_forward_hooks", "_forward_pre_hooks")),
    # which parameters a weight is made of
    Private("layers", "torch.nn.utils.parametrizations", ("_SpectralNorm", "_WeightNorm")),
    # whether torch.compile hides a model's layers
    Private("layers' calls", "torch.nn.Module", ("_compiled_call_impl",)),
    # whether hooks change a step
    Private("optimizers", "torch.optim.Optimizer", ("_optimizer_step_post_hooks", "_optimizer_step_pre_hooks")),
    # symbols; also tensors on their way to the host. Without it a copy is not asynchronous (documented, and without a
    # public name)
    Private("compile", "torch.Tensor", ("_make_wrapper_subclass",)),
    # symbols
    Private("compile", "torch._C", ("_disabled_torch_function_impl",)),
    # marking a new tensor as conjugate or negative, as another one is
    Private("compile and virtual GPUs", "torch._C", ("_set_conj", "_set_neg")),
    # what an operation takes and changes
    Private("compile and virtual GPUs", "torch._ops.OpOverload", ("_schema",)),
    # the zero of derivatives, which has no memory: reading it ends the process
    Private("compile and virtual GPUs", "torch.ops.aten", ("_efficientzerotensor",)),
    # a DataLoader that shuffles inside `with device:`; without it PyTorch's own context, in which it raises
    # (pytorch/pytorch#110820)
    Private("data loaders", "torch.utils._device", ("DeviceContext",)),
    # calling an operation without the Python method around it, which takes 0.2 us of the call's 2 us
    Private("compile", "torch._ops.OpOverload", ("_op",)),
    # symbols take the shape of their tensors
    Private("compile", "torch._C", ("_DisableTorchDispatch",)),
    # what else sees the operations: only scopes of a device may
    Private("compile", "torch.overrides", ("_get_current_function_mode_stack",)),
    # computing past the scopes of devices, which PyTorch calls for each operation and attribute. Without it, a step
    # inside `with device:` takes twice as long
    Private(
        "arithmetic", "torch._C",
        ("_len_torch_function_stack", "_get_function_stack_at", "_pop_torch_function_stack",
         "_push_on_torch_function_stack"),
    ),
    # copies of all parameters in one kernel. Without it, one each
    Private("arithmetic", "torch", ("_foreach_mul",)),
    # a program past the scopes of a device, which would look at each operation
    Private("compile", "torch._C", ("DisableTorchFunction",)),
    # listening on one address
    Private("several processes", "torch.distributed.ProcessGroupGloo", ("_Options",)),
    # the same
    Private("several processes", "torch.distributed.ProcessGroupGloo._Options", ("_devices", "_timeout")),
    # `native_group` after a failure. Without it, a rank waits until PyTorch's own deadline
    Private("several processes", "torch.distributed.distributed_c10d", ("_abort_process_group",)),
    # tensors in one kernel: 99 small ones on a GPU take 50 us. Without it, one after another, in 640 us
    Private("several processes", "torch", ("_foreach_copy_",)),
    # a workspace for each; what a failed recording leaves behind
    Private(
        "graphs", "torch._C", ("_cuda_clearCublasWorkspaces", "_cuda_endAllocateToPool", "_cuda_releasePool"), "CUDA",
    ),
    # the same before 2.8
    Private("graphs", "torch._C", ("_cuda_endAllocateCurrentStreamToPool",), "older"),
    # work that takes long
    Private("samples", "torch.cuda", ("_sleep",)),
    # a device written in Python
    Private("virtual GPUs", "torch.utils.backend_registration", ("_setup_privateuseone_for_python_backend",)),
    # tensors there, and a kernel for each operation
    Private(
        "virtual GPUs", "torch._C",
        ("_construct_storage_from_data_pointer", "_dispatch_get_all_op_names", "_dispatch_has_kernel_for_dispatch_key",
         "_get_schema", "_swap_tensor_impl", "DispatchKey", "DispatchKeySet"),
    ),
    # operations past the user's tensor classes
    Private("virtual GPUs", "torch._C", ("DisableTorchFunctionSubclass",)),
    # contents
    Private("virtual GPUs", "torch.Tensor", ("_backward_hooks", "_post_accumulate_grad_hooks")),
    # which generators are a virtual GPU's
    Private("virtual GPUs", "torch.Generator", ("_cdata",)),
    # sparse tensors, and operations with special rules
    Private(
        "virtual GPUs", "torch.ops.aten",
        ("_indices", "_values", "_sparse_coo_tensor_with_dims_and_tensors", "_sparse_compressed_tensor_unsafe",
         "_pack_padded_sequence", "_pin_memory"),
    ),
)  # fmt: skip

private = Names("torch", TESTED, PRIVATE, IN_BLOCKS, FOR_GOOD)
