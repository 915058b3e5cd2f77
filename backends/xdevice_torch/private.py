"""Lists the attributes of PyTorch that this adapter replaces, and the private names of PyTorch that it uses."""

from __future__ import annotations

from typing import Final

from xdevice.contract.private import Patch, Private

from . import transfers

PATCHES: Final = (
    Patch("torch.nn.Module", ("__call__",), "`trace`: the layers that a model calls", "block"),
    Patch(
        "torch.Tensor", (*transfers.READS, "to", "cpu", "cuda", "xpu"),
        "`transfers`: reads and moves. A TorchFunctionMode sees one thread only, and misses what runs with a copy of "
        "the context in another; it makes torch.compile compile its functions again", "block",
    ),
    Patch("torch.Tensor", ("vgpu",), "the same: `x.vgpu()`, as `x.cuda()`", "block", "virtual GPUs"),
    Patch(
        "torch.Tensor", ("data",),
        "virtual GPUs: `Module.to` sets it, and PyTorch does not put contents of one kind into a tensor of the other",
        "process",
    ),
    Patch(
        "torch.Tensor", ("new", "new_tensor"), "virtual GPUs: C++ takes index 0 instead of the tensor's own", "process",
    ),
    Patch("torch.Tensor", ("to",), "virtual GPUs: a device without an index is the current one", "process"),
    Patch("torch", ("tensor", "as_tensor", "asarray"), "the same", "process"),
    Patch("torch", ("_has_compatible_shallow_copy_type",), "virtual GPUs: as `torch.Tensor.data`", "process"),
    Patch(
        "torch.UntypedStorage", ("__new__", "clone", "cpu", "_write_file"),
        "virtual GPUs: PyTorch asks the device for an allocator, and crashes", "process",
    ),
    Patch(
        "torch._C",
        tuple(f"_accelerator_{name}" for name in (
            "getDeviceIndex", "setDeviceIndex", "exchangeDevice", "maybeExchangeDevice", "synchronizeDevice",
            "isAllocatorInitialized", "emptyCache", "emptyHostCache", "getDeviceStats", "getMemoryInfo",
            "resetPeakStats", "resetAccumulatedStats", "setStream",
        )),
        "virtual GPUs: `torch.accelerator` asks the device guard or an allocator, and fails or crashes", "process",
    ),
    Patch(
        "torch._C", ("_scatter", "_gather", "_broadcast", "_broadcast_coalesced"),
        "virtual GPUs: DataParallel is refused by name", "process", "CUDA",
    ),
    Patch(
        "torch._TorchCompileInductorWrapper", ("__call__",),
        "virtual GPUs: the compiler has no code for them, and ends in a KeyError", "process",
    ),
    Patch(
        "torch.autograd", ("_engine_run_backward",),
        "virtual GPUs: autograd's engine has no thread for index 1", "process",
    ),
    Patch("torch", ("set_default_device",), "`--xd-cuda`: \"cuda\" is a virtual GPU", "process"),
    Patch("torch.cuda", ("is_available",), "the same", "process"),
    Patch("torch.backends.cuda", ("is_built",), "the same", "process"),
)  # fmt: skip

PRIVATE: Final = (
    Private("torch.distributed.distributed_c10d", ("_abort_process_group",), "`native_group` after a failure"),
    Private("torch.nn.Module", ("_compiled_call_impl",), "`trace`: whether torch.compile hides the layers of a model"),
    Private("torch.nn.modules.module", ("_EXTRA_STATE_KEY_SUFFIX",), "loading: which names are a module's extra state"),
    Private("torch._dynamo.eval_frame.OptimizedModule", ("_orig_mod",), "the same"),
    Private("torch._C", ("_is_tracing",), "whether `torch.jit.trace` would freeze random numbers"),
    Private("torch.fx", ("_symbolic_trace",), "the same, of `torch.fx`"),
    Private("torch.fx._symbolic_trace", ("is_fx_symbolic_tracing",), "the same"),
    Private("torch.fx._symbolic_trace", ("is_fx_tracing",), "the same before 2.9", "older"),
    Private("torch.utils", ("_pytree",), "the containers that PyTorch knows; public only in later versions"),
    Private("torch.utils._pytree", ("tree_leaves", "tree_map_only"), "the same"),
    Private(
        "torch.utils._python_dispatch", ("TorchDispatchMode", "_get_current_dispatch_mode_stack"),
        "seeing each operation of a thread; documented, and without a public name",
    ),
    Private("torch._C", ("_len_torch_dispatch_stack",), "whether something sees each operation"),
    Private("torch._C", ("_len_torch_function_stack", "_get_default_device"), "whether the CPU is the default anyway"),
    Private("torch", ("_fused_adam_",), "Adam in one kernel"),
    Private("torch.utils._python_dispatch.TorchDispatchMode", ("_should_skip_dynamo",), "`compile`: without an import"),
    Private("torch._C", ("_disabled_torch_function_impl",), "`compile`: symbols; documented, and without a name"),
    Private("torch._C", ("_set_conj", "_set_neg"), "`compile`: symbols that are marked as their tensors are"),
    Private("torch.overrides", ("_get_current_function_mode_stack",), "`compile`: what else sees the operations"),
    Private("torch.utils._device", ("DeviceContext",), "`compile`: which of these is a default device"),
    Private(
        "torch._ops.OpOverload", ("_op", "_opname", "_overloadname"),
        "`compile`: an operation without a frame of Python, and which it is",
    ),
    Private("torch.Tensor", ("_is_view",), "`compile`: what a symbol does not tell; documented, and without a name"),
    Private("torch._C", ("_DisableTorchDispatch",), "`compile`: symbols take the shape of their tensors"),
    Private("torch._C", ("_set_grad_enabled",), "gradients: without a context manager, which takes 2 us"),
    Private("torch.ops.aten", ("_has_same_storage_numel",), "`compile`: an operation that gives no value of a tensor"),
    Private("torch._C", ("_nn",), "`nn`: the loss without PyTorch's Python"),
    Private("torch.autograd.Variable", ("_execution_engine",), "gradients: what `torch.autograd.grad` ends in"),
    Private("torch._C", ("_lazy",), "whether a lazy device was started, whose work cannot be waited for"),
    Private("torch._C._lazy", ("_get_default_device_type",), "the same"),
    Private("torch.ops.aten", ("_local_scalar_dense", "_to_copy"), "`transfers`: what C++ reads and moves by itself"),
    Private("torch.nn.Module", ("_apply", "_buffers"), "modules that move tensors of their own; shared buffers"),
    Private("torch.nn.modules.batchnorm", ("_BatchNorm",), "the layers of all dimensions"),
    Private("torch.nn.modules.conv", ("_ConvNd",), "the same"),
    Private("torch.nn.modules.instancenorm", ("_InstanceNorm",), "the same"),
    Private("torch.nn.utils.parametrizations", ("_WeightNorm",), "the same"),
    Private(
        "torch.nn.modules.padding",
        ("_CircularPadNd", "_ConstantPadNd", "_ReflectionPadNd", "_ReplicationPadNd"), "the same",
    ),
    Private("torch.nn.MultiheadAttention", ("_qkv_same_embed_dim",), "which parameters it has"),
    Private("torch.nn.Module", ("_modules",), "which layers stand in a row, also what comes twice"),
    Private("torch.nn.Module", ("_forward_hooks", "_forward_pre_hooks"), "whether hooks change what a layer gives"),
    Private(
        "torch.optim.Optimizer", ("_optimizer_step_post_hooks", "_optimizer_step_pre_hooks"),
        "whether hooks change a step",
    ),
    Private("torch.distributed.ProcessGroupGloo", ("_Options",), "several processes: listening on one address"),
    Private("torch.distributed.ProcessGroupGloo._Options", ("_devices", "_timeout"), "the same"),
    Private("torch.TypedStorage", ("_untyped_storage",), "past a warning that the type will go"),
    Private("torch.Tensor", ("_make_wrapper_subclass",), "a tensor on its way to the host; documented, without a name"),
    Private("torch._subclasses.fake_tensor", ("FakeTensor",), "tensors without values are refused"),
    Private("torch._subclasses.functional_tensor", ("FunctionalTensor",), "the same"),
    Private("torch._C", ("_functorch",), "the same"),
    Private("torch.UntypedStorage", ("_cdata",), "what tells memory from other memory"),
    Private("torch._C", ("_cuda_hasPrimaryContext",), "asking whether a GPU is used without starting it", "CUDA"),
    Private("torch._C", ("_nccl_all_reduce",), "whether this build has NCCL", "CUDA"),
    Private(
        "torch._C", ("_cuda_clearCublasWorkspaces", "_cuda_endAllocateToPool", "_cuda_releasePool"),
        "graphs: a workspace for each; what a failed recording leaves behind", "CUDA",
    ),
    Private("torch._C", ("_cuda_endAllocateCurrentStreamToPool",), "the same before 2.8", "older"),
    Private("torch.cuda", ("_sleep",), "samples: work that takes long"),
    Private(
        "torch.utils.backend_registration", ("_setup_privateuseone_for_python_backend",),
        "virtual GPUs: a device written in Python",
    ),
    Private("torch._decomp", ("decompositions",), "virtual GPUs: LSTM and GRU by their parts"),
    Private("torch._utils", ("_rebuild_device_tensor_from_cpu_tensor",), "virtual GPUs in another process"),
    Private(
        "torch._C",
        ("_get_privateuse1_backend_name", "_swap_tensor_impl", "_to_dlpack", "_construct_storage_from_data_pointer",
         "_dispatch_get_all_op_names", "_dispatch_has_kernel_for_dispatch_key", "_get_schema"),
        "virtual GPUs: tensors there, and a kernel for each operation",
    ),
    Private("torch", ("_C", "_utils", "_neg_view"), "virtual GPUs"),
    Private(
        "torch.Tensor", ("_backward_hooks", "_post_accumulate_grad_hooks", "_indices", "_values"),
        "virtual GPUs: contents, sparse tensors",
    ),
    Private("torch._ops.OpOverload", ("_handle", "_schema"), "virtual GPUs: what each operation takes and changes"),
    Private(
        "torch.ops.aten",
        ("_copy_from", "_copy_from_and_resize", "_foreach_copy_", "_index_put_impl_", "_pack_padded_sequence",
         "_sparse_coo_tensor_with_dims_and_tensors", "_efficientzerotensor", "_pin_memory",
         "_sparse_compressed_tensor_unsafe"),
        "virtual GPUs: operations with rules of their own",
    ),
)  # fmt: skip
