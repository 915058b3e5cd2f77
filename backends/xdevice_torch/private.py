"""The private names of PyTorch that this adapter uses, and the attributes of PyTorch that it replaces. Each entry
states the capability that needs the names. The adapter's other modules read a private name as
`private["torch._C...."]`."""

from __future__ import annotations

from typing import Final

from xdevice.contract.private import Names, Private

TESTED: Final = "2.15.0"

READS: Final = (
    "item", "tolist", "numpy", "__array__", "__float__", "__int__", "__bool__", "__index__", "__complex__",
    "__repr__", "__format__", "__reduce_ex__",
)  # fmt: skip
"""Methods of a tensor with which the host reads the tensor."""

IN_BLOCKS: Final = (
    # records the calls of a model's layers. PyTorch's global hooks for modules report neither
    # the result of a class's own `__call__` nor the failure of a call
    Private("layers' calls", "torch.nn.Module", ("__call__",)),
    # reports reads and moves. A TorchFunctionMode works only in one thread, even if another
    # thread runs with a copy of the context, and it makes torch.compile compile functions again
    Private("transfers", "torch.Tensor", (*READS, "to", "copy_", "cpu", "cuda", "xpu")),
    # reports `x.vgpu()`, which moves a tensor to a virtual GPU, as `x.cuda()` moves a tensor to
    # a CUDA device
    Private("transfers", "torch.Tensor", ("vgpu",), "virtual GPUs"),
)  # fmt: skip
"""Attributes that are replaced until the last block that needs them ends."""

FOR_GOOD: Final = (
    # `Module.to` assigns to this property, and PyTorch rejects the assignment if only one of the two tensors is on
    # a virtual GPU
    Private("virtual GPUs", "torch.Tensor", ("data",)),
    # the parameters remain the same objects in `Module.to` only if this function returns True;
    # PyTorch's function returns False if only one of the two tensors is on a virtual GPU
    Private("virtual GPUs", "torch", ("_has_compatible_shallow_copy_type",)),
    # C++ creates the new tensor on the device with index 0 instead of the tensor's own device
    Private("virtual GPUs", "torch.Tensor", ("new", "new_tensor")),
    # C++ treats a device without an index as index 0, but such a device means the current device
    Private("virtual GPUs", "torch.Tensor", ("to",)),
    # like `Tensor.to`: C++ treats a device without an index as index 0
    Private("virtual GPUs", "torch", ("tensor", "as_tensor", "asarray")),
    # PyTorch asks the device for an allocator, which a virtual GPU does not have, and crashes
    Private("virtual GPUs", "torch.UntypedStorage", ("__new__",)),
    # `torch.accelerator` calls these functions, which need the device guard or an allocator of
    # the device, and would fail or crash
    Private(
        "virtual GPUs", "torch._C",
        tuple(f"_accelerator_{name}" for name in (
            "getDeviceIndex", "setDeviceIndex", "exchangeDevice", "maybeExchangeDevice", "synchronizeDevice",
            "isAllocatorInitialized", "getDeviceStats", "resetPeakStats", "resetAccumulatedStats", "getMemoryInfo",
            "setStream",
        )),
    ),
    # `torch.accelerator` calls this function to empty a cache of pinned memory, which a virtual
    # GPU does not have
    Private("virtual GPUs", "torch._C", ("_accelerator_emptyHostCache",), "newer"),
    # this function asks the device for an allocator, which a virtual GPU does not have, and crashes
    Private("virtual GPUs", "torch.accelerator", ("empty_cache",)),
    # only C++ code can create generators for the device type that PyTorch reserves for other packages
    Private("virtual GPUs", "torch", ("Generator",)),
    # `DataParallel` calls these functions, which are written for CUDA. The replacements raise
    # an error that says what to use instead
    Private("virtual GPUs", "torch.nn.parallel.comm", ("scatter", "gather", "broadcast_coalesced")),
    # PyTorch's compiler has no code generator for virtual GPUs, and raises a KeyError. With the
    # replacement, the graph runs uncompiled
    Private("virtual GPUs", "torch._TorchCompileInductorWrapper", ("__call__",)),
    # autograd's engine has no thread for a virtual GPU with an index other than 0. With the
    # replacement, the backward pass runs in the calling thread
    Private("virtual GPUs", "torch.autograd", ("_engine_run_backward",)),
    # "cuda" as the default device means a virtual GPU
    Private("--xd-cuda", "torch", ("set_default_device",)),
    # code that finds CUDA available calls these functions; the replacements answer for the virtual GPUs
    Private(
        "--xd-cuda", "torch.cuda",
        ("is_available", "device_count", "device", "current_device", "set_device", "synchronize", "get_rng_state",
         "set_rng_state", "memory_allocated", "max_memory_allocated"),
    ),
    # before they use CUDA, some programs call this function in addition to `torch.cuda.is_available`
    Private("--xd-cuda", "torch.backends.cuda", ("is_built",)),
)  # fmt: skip
"""Attributes that are replaced until the process ends."""

PRIVATE: Final = (
    # reports whether `torch.fx` is tracing, which would turn random numbers into constants. A public function was
    # proposed, but not added (pytorch/pytorch#43971)
    Private("random numbers", "torch.fx._symbolic_trace", ("is_fx_symbolic_tracing",)),
    # reports whether `torch.fx` is tracing, in versions before 2.9
    Private("random numbers", "torch.fx._symbolic_trace", ("is_fx_tracing",), "older"),
    # shows whether a parameter was written in the block of `averaging`. Without it, an optimizer step inside the
    # block is not noticed
    Private("several processes", "torch.Tensor", ("_version",)),
    # registers containers also with PyTorch's pytrees. Without it, PyTorch treats these
    # containers as leaves
    Private("containers", "torch.utils._pytree", ("register_pytree_node",)),
    # contains the types that a program has registered with PyTorch's pytrees, for which there is no public name.
    # Without it, objects of types that xdevice does not know raise an error
    Private("containers", "torch.utils._pytree", ("SUPPORTED_NODES",)),
    # shows whether torch.compile would trace the functions that are called now. Without it, torch.compile may trace
    # xdevice's own functions after a graph break
    Private("compile", "torch._C", ("_dynamo.eval_frame.get_eval_frame_callback",), "newer"),
    # recognizes the objects that replace tensors while torch traces a function. These objects
    # have no values
    Private("conversion", "torch._subclasses", ("fake_tensor.FakeTensor", "functional_tensor.FunctionalTensor")),
    # recognizes the tensors that `torch.func` wraps: reading a tensor that
    # `torch.func.functionalize` wraps returns garbage
    Private("conversion", "torch._C", ("_functorch.is_functorch_wrapped_tensor",)),
    # a module whose class overrides this method moves more tensors than its parameters and buffers
    Private("models", "torch.nn.Module", ("_apply",)),
    # names the attribute that `prune` computes before each call; this attribute does not need to be moved
    Private("models", "torch.nn.utils.prune.BasePruningMethod", ("_tensor_name",)),
    # reports whether a lazy device was started, because it is impossible to wait for the work of such a device.
    # Without it, the device is assumed to be started once its module has been imported
    Private("waiting", "torch._C", ("_lazy._get_default_device_type",)),
    # reports whether a GPU is in use, without starting the GPU. Without it, waiting creates a context on each GPU
    # of this process
    Private("waiting", "torch._C", ("_cuda_hasPrimaryContext",), "CUDA"),
    # PyTorch calls such a mode for each operation of a thread. Without it, tensors are created
    # and copied as if a mode were active (documented, but in a module without a public name)
    Private(
        "blocking, compile, graphs and transfers", "torch.utils._python_dispatch",
        ("TorchDispatchMode", "_get_current_dispatch_mode_stack"),
    ),
    # these operations read one value (`x.item()`) or copy a tensor (`x.to()`)
    Private("transfers", "torch.ops.aten", ("_local_scalar_dense", "_to_copy")),
    # shows whether a transformation of `torch.func` is running
    Private("gradients", "torch._C", ("_functorch.peek_interpreter_stack",)),
    # computes Adam in one kernel. Without it, Adam needs several kernels
    Private("nn", "torch", ("_fused_adam_",)),
    # show whether hooks change the result of a layer, and which attributes the hooks compute
    Private("layers and models", "torch.nn.Module", ("_forward_hooks", "_forward_pre_hooks")),
    # show which parameters a weight is computed from
    Private("layers", "torch.nn.utils.parametrizations", ("_SpectralNorm", "_WeightNorm")),
    # shows whether torch.compile hides the calls of a model's layers
    Private("layers' calls", "torch.nn.Module", ("_compiled_call_impl",)),
    # show whether hooks change the step of an optimizer
    Private("optimizers", "torch.optim.Optimizer", ("_optimizer_step_post_hooks", "_optimizer_step_pre_hooks")),
    # creates tensors without memory: the symbols of compiled functions, and tensors whose
    # values are still being copied to the host. Without it, copies to the host are not
    # asynchronous (documented, but without a public name)
    Private("compile", "torch.Tensor", ("_make_wrapper_subclass",)),
    # disables `__torch_function__` for symbols
    Private("compile", "torch._C", ("_disabled_torch_function_impl",)),
    # mark a new tensor as conjugate or negative if another tensor is
    Private("compile and virtual GPUs", "torch._C", ("_set_conj", "_set_neg")),
    # describes the arguments of an operation, and shows which of them it writes to
    Private("compile and virtual GPUs", "torch._ops.OpOverload", ("_schema",)),
    # creates the zero of derivatives, which has no memory: reading such a tensor ends the process
    Private("compile and virtual GPUs", "torch.ops.aten", ("_efficientzerotensor",)),
    # the base class of a device context in which a DataLoader can shuffle. Without it, `with device:` is PyTorch's own
    # context, in which such a DataLoader raises an error (pytorch/pytorch#110820)
    Private("data loaders", "torch.utils._device", ("DeviceContext",)),
    # calls an operation without its Python wrapper, which takes 0.2 us of the call's 2 us
    Private("compile", "torch._ops.OpOverload", ("_op",)),
    # allows the shape of a symbol to be changed without calling the dispatch modes
    Private("compile", "torch._C", ("_DisableTorchDispatch",)),
    # lists the modes that intercept operations: only device scopes may be among them
    Private("compile", "torch.overrides", ("_get_current_function_mode_stack",)),
    # remove the scopes of devices for a computation, because PyTorch calls them for each operation and attribute.
    # Without these functions, a step inside `with device:` takes twice as long
    Private(
        "arithmetic", "torch._C",
        ("_len_torch_function_stack", "_get_function_stack_at", "_pop_torch_function_stack",
         "_push_on_torch_function_stack"),
    ),
    # copies all parameters in one kernel. Without it, each parameter is copied by a separate kernel
    Private("arithmetic", "torch", ("_foreach_mul",)),
    # runs a compiled program outside device scopes, which PyTorch would otherwise call for each operation
    Private("compile", "torch._C", ("DisableTorchFunction",)),
    # makes gloo listen on a single address
    Private("several processes", "torch.distributed.ProcessGroupGloo", ("_Options",)),
    # gloo's settings: the address that it listens on, and the timeout
    Private("several processes", "torch.distributed.ProcessGroupGloo._Options", ("_devices", "_timeout")),
    # ends `native_group` after a failure. Without it, a rank waits until PyTorch's own deadline
    Private("several processes", "torch.distributed.distributed_c10d", ("_abort_process_group",)),
    # copies tensors in one kernel: 99 small tensors take 50 us on a GPU. Without it, they are copied in sequence,
    # which takes 640 us
    Private("several processes", "torch", ("_foreach_copy_",)),
    # give each graph its own cuBLAS workspace, and free the memory that a failed recording leaves behind
    Private(
        "graphs", "torch._C", ("_cuda_clearCublasWorkspaces", "_cuda_endAllocateToPool", "_cuda_releasePool"), "CUDA",
    ),
    # frees the memory that a failed recording leaves behind, in versions before 2.8
    Private("graphs", "torch._C", ("_cuda_endAllocateCurrentStreamToPool",), "older"),
    # keeps a GPU busy for some time
    Private("samples", "torch.cuda", ("_sleep",)),
    # registers a device that is implemented in Python
    Private("virtual GPUs", "torch.utils.backend_registration", ("_setup_privateuseone_for_python_backend",)),
    # create tensors on virtual GPUs, and register a kernel for each operation
    Private(
        "virtual GPUs", "torch._C",
        ("_construct_storage_from_data_pointer", "_dispatch_get_all_op_names", "_dispatch_has_kernel_for_dispatch_key",
         "_get_schema", "_swap_tensor_impl", "DispatchKey", "DispatchKeySet"),
    ),
    # runs operations without calling the `__torch_function__` of a user's tensor classes
    Private("virtual GPUs", "torch._C", ("DisableTorchFunctionSubclass",)),
    # the hooks of a tensor, which must stay with the tensor when its contents are exchanged
    Private("virtual GPUs", "torch.Tensor", ("_backward_hooks", "_post_accumulate_grad_hooks")),
    # recognizes the generators of virtual GPUs by their addresses
    Private("virtual GPUs", "torch.Generator", ("_cdata",)),
    # handle sparse tensors, and the operations for which virtual GPUs have their own rules
    Private(
        "virtual GPUs", "torch.ops.aten",
        ("_indices", "_values", "_sparse_coo_tensor_with_dims_and_tensors", "_sparse_compressed_tensor_unsafe",
         "_pack_padded_sequence", "_pin_memory"),
    ),
)  # fmt: skip

private = Names("torch", TESTED, PRIVATE, IN_BLOCKS, FOR_GOOD)
