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
    # records the calls of a model's layers. PyTorch's global hooks for modules notice neither
    # the result of a class's own `__call__` nor that a call has failed
    Private("layers' calls", "torch.nn.Module", ("__call__",)),
    # reports reads and moves. A TorchFunctionMode works in one thread only, even if another
    # thread runs with a copy of the context, and it makes torch.compile compile functions again
    Private("transfers", "torch.Tensor", (*READS, "to", "copy_", "cpu", "cuda", "xpu")),
    # reports `x.vgpu()`, which moves a tensor to a virtual GPU as `x.cuda()` moves it to a CUDA
    # device
    Private("transfers", "torch.Tensor", ("vgpu",), "virtual GPUs"),
)  # fmt: skip
"""Attributes that are replaced until the last block that needs them ends."""

FOR_GOOD: Final = (
    # `Module.to` assigns it, and PyTorch refuses that if only one of the two tensors is on a
    # virtual GPU
    Private("virtual GPUs", "torch.Tensor", ("data",)),
    # `Module.to` keeps its parameters the same objects only if this returns True, which
    # PyTorch's own does not if only one of the two tensors is on a virtual GPU
    Private("virtual GPUs", "torch", ("_has_compatible_shallow_copy_type",)),
    # C++ makes the new tensor on index 0 instead of the tensor's own index
    Private("virtual GPUs", "torch.Tensor", ("new", "new_tensor")),
    # C++ takes a device without an index for index 0, but it means the current device
    Private("virtual GPUs", "torch.Tensor", ("to",)),
    # as for `Tensor.to`, C++ takes a device without an index for index 0
    Private("virtual GPUs", "torch", ("tensor", "as_tensor", "asarray")),
    # PyTorch asks the device for an allocator, which it does not have, and crashes
    Private("virtual GPUs", "torch.UntypedStorage", ("__new__",)),
    # `torch.accelerator` calls these functions, which ask the device guard or an allocator of
    # the device, and fail or crash
    Private(
        "virtual GPUs", "torch._C",
        tuple(f"_accelerator_{name}" for name in (
            "getDeviceIndex", "setDeviceIndex", "exchangeDevice", "maybeExchangeDevice", "synchronizeDevice",
            "isAllocatorInitialized", "getDeviceStats", "resetPeakStats", "resetAccumulatedStats", "getMemoryInfo",
            "setStream",
        )),
    ),
    # `torch.accelerator` calls it to empty a cache of pinned memory, which a virtual GPU does
    # not have
    Private("virtual GPUs", "torch._C", ("_accelerator_emptyHostCache",), "newer"),
    # it asks the device for an allocator, which it does not have, and crashes
    Private("virtual GPUs", "torch.accelerator", ("empty_cache",)),
    # only C++ code can make generators for a device that PyTorch reserves for others
    Private("virtual GPUs", "torch", ("Generator",)),
    # `DataParallel` calls these functions, which are written for CUDA. They raise an error that
    # names what to use instead
    Private("virtual GPUs", "torch.nn.parallel.comm", ("scatter", "gather", "broadcast_coalesced")),
    # PyTorch's compiler has no code generator for virtual GPUs, and raises a KeyError. The
    # graph runs uncompiled
    Private("virtual GPUs", "torch._TorchCompileInductorWrapper", ("__call__",)),
    # autograd's engine has no thread for a virtual GPU with another index than 0. The backward
    # pass runs in the calling thread
    Private("virtual GPUs", "torch.autograd", ("_engine_run_backward",)),
    # "cuda" as the default device means a virtual GPU
    Private("--xd-cuda", "torch", ("set_default_device",)),
    # code that finds CUDA available calls these functions, which answer for the virtual GPUs
    Private(
        "--xd-cuda", "torch.cuda",
        ("is_available", "device_count", "device", "current_device", "set_device", "synchronize", "get_rng_state",
         "set_rng_state", "memory_allocated", "max_memory_allocated"),
    ),
    # some programs call it, besides `torch.cuda.is_available`, before they use CUDA
    Private("--xd-cuda", "torch.backends.cuda", ("is_built",)),
)  # fmt: skip
"""Attributes that are replaced until the process ends."""

PRIVATE: Final = (
    # whether `torch.fx` traces, which would turn random numbers into constants. A public
    # function was proposed and not added (pytorch/pytorch#43971)
    Private("random numbers", "torch.fx._symbolic_trace", ("is_fx_symbolic_tracing",)),
    # whether `torch.fx` traces, in versions before 2.9
    Private("random numbers", "torch.fx._symbolic_trace", ("is_fx_tracing",), "older"),
    # whether a parameter was written in the block of `averaging`. Without it, a step inside the
    # block is not noticed
    Private("several processes", "torch.Tensor", ("_version",)),
    # registers containers with PyTorch's pytrees, too. Without it, PyTorch takes them for
    # leaves
    Private("containers", "torch.utils._pytree", ("register_pytree_node",)),
    # the types that a program has registered with PyTorch's pytrees, which have no public name.
    # Without it, objects of types that xdevice does not know are refused
    Private("containers", "torch.utils._pytree", ("SUPPORTED_NODES",)),
    # whether torch.compile would trace the functions that are called now. Without it, torch.compile may
    # trace xdevice's own functions after a graph break
    Private("compile", "torch._C", ("_dynamo.eval_frame.get_eval_frame_callback",), "newer"),
    # recognizes the objects that replace tensors while torch traces a function, and have no
    # values
    Private("conversion", "torch._subclasses", ("fake_tensor.FakeTensor", "functional_tensor.FunctionalTensor")),
    # recognizes the tensors that `torch.func` wraps: reading those of
    # `torch.func.functionalize` gives garbage
    Private("conversion", "torch._C", ("_functorch.is_functorch_wrapped_tensor",)),
    # which modules move more tensors than their parameters and buffers: those whose class
    # overrides it
    Private("models", "torch.nn.Module", ("_apply",)),
    # which attribute `prune` computes before each call, so that it need not be moved
    Private("models", "torch.nn.utils.prune.BasePruningMethod", ("_tensor_name",)),
    # whether a lazy device was started, for whose work nobody can wait. Without it, the device
    # counts as started once its module is imported
    Private("waiting", "torch._C", ("_lazy._get_default_device_type",)),
    # whether a GPU is in use, without starting it. Without it, waiting makes a context on each
    # GPU of this process
    Private("waiting", "torch._C", ("_cuda_hasPrimaryContext",), "CUDA"),
    # sees each operation of a thread. Without it, tensors are made and copied as if a mode were
    # active (documented, but in a module without a public name)
    Private(
        "blocking, compile, graphs and transfers", "torch.utils._python_dispatch",
        ("TorchDispatchMode", "_get_current_dispatch_mode_stack"),
    ),
    # recognizes the operations that read one value (`x.item()`) or copy a tensor (`x.to()`)
    Private("transfers", "torch.ops.aten", ("_local_scalar_dense", "_to_copy")),
    # whether a transformation of `torch.func` is running
    Private("gradients", "torch._C", ("_functorch.peek_interpreter_stack",)),
    # computes Adam in one kernel. Without it, Adam takes several
    Private("nn", "torch", ("_fused_adam_",)),
    # whether hooks change the result of a layer, and which attributes they compute
    Private("layers and models", "torch.nn.Module", ("_forward_hooks", "_forward_pre_hooks")),
    # from which parameters a weight is computed
    Private("layers", "torch.nn.utils.parametrizations", ("_SpectralNorm", "_WeightNorm")),
    # whether torch.compile hides the calls of a model's layers
    Private("layers' calls", "torch.nn.Module", ("_compiled_call_impl",)),
    # whether hooks change the step of an optimizer
    Private("optimizers", "torch.optim.Optimizer", ("_optimizer_step_post_hooks", "_optimizer_step_pre_hooks")),
    # makes tensors without memory: symbols of compiled functions, and tensors whose values are
    # on their way to the host. Without it, copies to the host are not asynchronous (documented,
    # but without a public name)
    Private("compile", "torch.Tensor", ("_make_wrapper_subclass",)),
    # switches `__torch_function__` off for symbols
    Private("compile", "torch._C", ("_disabled_torch_function_impl",)),
    # marks a new tensor as conjugate or negative, as another tensor is marked
    Private("compile and virtual GPUs", "torch._C", ("_set_conj", "_set_neg")),
    # the arguments of an operation, and into which of them it writes
    Private("compile and virtual GPUs", "torch._ops.OpOverload", ("_schema",)),
    # the zero of derivatives, which has no memory: reading it ends the process
    Private("compile and virtual GPUs", "torch.ops.aten", ("_efficientzerotensor",)),
    # a device context in which a DataLoader can shuffle. Without it, `with device:` is
    # PyTorch's own context, in which such a DataLoader raises (pytorch/pytorch#110820)
    Private("data loaders", "torch.utils._device", ("DeviceContext",)),
    # calls an operation without the Python method around it, which takes 0.2 us of the call's 2
    # us
    Private("compile", "torch._ops.OpOverload", ("_op",)),
    # gives symbols the shapes of their tensors
    Private("compile", "torch._C", ("_DisableTorchDispatch",)),
    # whether another mode sees the operations: only scopes of a device may do so
    Private("compile", "torch.overrides", ("_get_current_function_mode_stack",)),
    # computes outside the scopes of devices, which PyTorch calls for each operation and
    # attribute. Without it, a step inside `with device:` takes twice as long
    Private(
        "arithmetic", "torch._C",
        ("_len_torch_function_stack", "_get_function_stack_at", "_pop_torch_function_stack",
         "_push_on_torch_function_stack"),
    ),
    # copies all parameters in one kernel. Without it, each is copied by a kernel of its own
    Private("arithmetic", "torch", ("_foreach_mul",)),
    # runs a compiled program outside the scopes of devices, which would see each operation
    Private("compile", "torch._C", ("DisableTorchFunction",)),
    # makes gloo listen on one address
    Private("several processes", "torch.distributed.ProcessGroupGloo", ("_Options",)),
    # gloo's settings: the address to listen on, and the timeout
    Private("several processes", "torch.distributed.ProcessGroupGloo._Options", ("_devices", "_timeout")),
    # ends `native_group` after a failure. Without it, a rank waits until PyTorch's own deadline
    Private("several processes", "torch.distributed.distributed_c10d", ("_abort_process_group",)),
    # copies tensors in one kernel: 99 small ones take 50 us on a GPU. Without it, they are
    # copied one after another, in 640 us
    Private("several processes", "torch", ("_foreach_copy_",)),
    # gives each graph a cuBLAS workspace of its own, and frees what a failed recording leaves
    # behind
    Private(
        "graphs", "torch._C", ("_cuda_clearCublasWorkspaces", "_cuda_endAllocateToPool", "_cuda_releasePool"), "CUDA",
    ),
    # frees what a failed recording leaves behind, in versions before 2.8
    Private("graphs", "torch._C", ("_cuda_endAllocateCurrentStreamToPool",), "older"),
    # keeps a GPU busy for some time
    Private("samples", "torch.cuda", ("_sleep",)),
    # registers a device that is written in Python
    Private("virtual GPUs", "torch.utils.backend_registration", ("_setup_privateuseone_for_python_backend",)),
    # makes tensors on virtual GPUs, and registers a kernel for each operation
    Private(
        "virtual GPUs", "torch._C",
        ("_construct_storage_from_data_pointer", "_dispatch_get_all_op_names", "_dispatch_has_kernel_for_dispatch_key",
         "_get_schema", "_swap_tensor_impl", "DispatchKey", "DispatchKeySet"),
    ),
    # runs operations without calling the `__torch_function__` of a user's tensor classes
    Private("virtual GPUs", "torch._C", ("DisableTorchFunctionSubclass",)),
    # the hooks of a tensor, which must stay with it when its contents are exchanged
    Private("virtual GPUs", "torch.Tensor", ("_backward_hooks", "_post_accumulate_grad_hooks")),
    # recognizes the generators of virtual GPUs by their addresses
    Private("virtual GPUs", "torch.Generator", ("_cdata",)),
    # handles sparse tensors, and the operations for which virtual GPUs have rules of their own
    Private(
        "virtual GPUs", "torch.ops.aten",
        ("_indices", "_values", "_sparse_coo_tensor_with_dims_and_tensors", "_sparse_compressed_tensor_unsafe",
         "_pack_padded_sequence", "_pin_memory"),
    ),
)  # fmt: skip

private = Names("torch", TESTED, PRIVATE, IN_BLOCKS, FOR_GOOD)
