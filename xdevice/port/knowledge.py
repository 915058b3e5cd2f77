"""Tables of facts about packages outside the project: the results of functions and methods, and
the values of attributes.

If a name is in no table, its result may be anything. If an entry is missing, the only effect is that a use of a device
is not rewritten. If an entry is wrong, `port` may rewrite code that must not change.
"""

from __future__ import annotations

import re
from typing import Final

from .values import (
    ARRAY,
    AVAILABLE,
    BOOL,
    FLOAT,
    INT,
    NONE,
    STR,
    TENSOR,
    UNKNOWN,
    Atom,
    Value,
    make_value,
    tuple_of,
    union,
)

# strings that name a device: "cuda:0", "GPU", "/device:GPU:1"; a star is a part that an
# f-string fills in
SPELLING: Final = re.compile(
    r"(cuda|cpu|gpu|mps|xpu|npu)(:(\d+|\*))?|/?(device:)?[CG]PU:(\d+|\*)", re.IGNORECASE
)

FRAMEWORKS: Final = {
    **dict.fromkeys(("torch", "torchvision", "torchaudio", "torch_xla"), "torch"),
    **dict.fromkeys(("tensorflow", "keras"), "tensorflow"),
    "paddle": "paddle",
    **dict.fromkeys(("mxnet", "gluoncv", "gluonnlp"), "mxnet"),
    **dict.fromkeys(("jax", "flax", "optax"), "jax"),
}
"""Maps each package to the framework to which it belongs."""
_FRAMEWORKS_OF_MODULES: Final = {
    **{f"d2l.{name}": name for name in ("torch", "mxnet", "tensorflow", "paddle", "jax")},
    "gluoncv.torch": "torch",
}
"""Maps modules to their frameworks, if these differ from the framework of the rest of the
package."""


def framework_of(full_name: str) -> str | None:
    """Returns the framework that a full name such as "torch.nn.Linear" belongs to; None if it
    belongs to no framework."""
    first_two = ".".join(full_name.split(".")[:2])
    return _FRAMEWORKS_OF_MODULES.get(first_two) or FRAMEWORKS.get(full_name.split(".")[0])


# names of functions that return one tensor, in every module of `_TENSOR_ROOTS` that has a function of this name
_TENSOR_FUNCTIONS: Final = """
zeros ones empty full rand randn randint randperm arange linspace eye tensor as_tensor from_numpy normal bernoulli
zeros_like ones_like empty_like full_like rand_like randn_like randint_like cat concat stack hstack vstack matmul mm
bmm mv dot einsum exp log log2 log1p sqrt rsqrt abs sign sin cos tan tanh sigmoid relu softmax log_softmax sum mean std
var max min argmax argmin prod cumsum cumprod clamp clip where nonzero gather index_select masked_select reshape
transpose permute flatten squeeze unsqueeze expand_dims tile repeat_interleave repeat flip roll pow add
sub subtract mul multiply div divide square norm outer tril triu diag flatten floor ceil round eq ne lt le gt ge
isnan isinf multinomial one_hot add_n addmm broadcast_to cast reduce_sum reduce_mean reduce_max reduce_min random_normal
concatenate swapaxes squeeze matmul tensordot power maximum minimum pad logical_and logical_or logical_not copy
cross_entropy mse_loss nll_loss binary_cross_entropy binary_cross_entropy_with_logits l1_loss smooth_l1_loss kl_div
dropout max_pool2d avg_pool2d adaptive_avg_pool2d conv2d conv1d linear embedding normalize interpolate log_sigmoid
numel size rank acos asin atan atan2 cosh sinh gather_nd reduce_prod reduce_any reduce_all
cardinality logsigmoid softplus gelu elu leaky_relu silu hardtanh batch_norm layer_norm constant
convert_to_tensor
"""
# modules with functions on tensors; of these functions, only `_TENSOR_FUNCTIONS` are known to
# return one tensor
_TENSOR_ROOTS: Final = """
torch torch.nn.functional torch.linalg torch.special torch.fft paddle paddle.nn.functional paddle.linalg tensorflow
tensorflow.nn tensorflow.math tensorflow.linalg tensorflow.random tensorflow.data.experimental mxnet.nd mxnet.ndarray
mxnet.nd.random mxnet.npx jax.nn jax.random jax.lax
"""
# modules whose functions all return tensors, except those in `_NO_TENSORS`
_ALL_TENSORS: Final = tuple(
    """
    mxnet.np mxnet.numpy jax.numpy mxnet.np.random mxnet.np.linalg mxnet.nd mxnet.ndarray mxnet.npx jax.numpy.linalg
    """.split()
)
_NO_TENSORS: Final = set(
    """
    waitall set_np reset_np num_gpus cpu gpu is_np_array contrib current_device load save dtype shape
    ndim size float32 float64 int32 int64 random linalg seed shuffle pi inf nan newaxis set_printoptions issubdtype
    finfo iinfo savez array_equal allclose isscalar iscomplexobj result_type split meshgrid array_split vectorize
    unique histogram where
    """.split()
)

# the results of calls, by full name; a later entry replaces an earlier one with the same name
_CALLS: Final[dict[str, Value]] = {
    **{
        f"{root}.{name}": TENSOR
        for root in _TENSOR_ROOTS.split()
        for name in _TENSOR_FUNCTIONS.split()
    },
    **dict.fromkeys(
        """
        torch.autograd.Variable torch.Tensor torch.FloatTensor torch.LongTensor torch.nn.Parameter
        paddle.to_tensor paddle.uniform paddle.create_parameter paddle.randn mxnet.nd.array mxnet.nd.NDArray
        mxnet.image.imread mxnet.image.imdecode mxnet.image.imresize torchvision.utils.make_grid
        tensorflow.Variable tensorflow.range jax.random.PRNGKey jax.random.uniform mxnet.random.uniform
        mxnet.random.normal torch.nn.utils.rnn.pad_sequence
    """.split(),
        TENSOR,
    ),
    **dict.fromkeys(
        ("torch.max.dim", "torch.topk", "torch.sort", "paddle.topk"), tuple_of([TENSOR, TENSOR])
    ),
    # `AVAILABLE` marks tests after which `port` may write a word that fails without a GPU
    **dict.fromkeys(("torch.cuda.is_available", "torch.accelerator.is_available"), AVAILABLE),
    **dict.fromkeys(
        ("torch.backends.mps.is_available", "torch.xpu.is_available", "torch.npu.is_available"),
        BOOL,
    ),
    **dict.fromkeys(
        """
        torch.cuda.device_count torch.accelerator.device_count mxnet.npx.num_gpus mxnet.context.num_gpus
        mxnet.device.num_gpus paddle.device.cuda.device_count jax.device_count jax.local_device_count
        xdevice.num_gpus torch.cuda.current_device torch.accelerator.current_device_index
        torch.distributed.get_rank torch.distributed.get_world_size paddle.distributed.get_rank
        paddle.distributed.get_world_size torch.distributed.get_node_local_rank horovod.mxnet.local_rank
        horovod.torch.local_rank
    """.split(),
        INT,
    ),
    **dict.fromkeys(
        ("xdevice.item", "time.time", "math.exp", "math.sqrt", "math.log", "random.random"),
        FLOAT,
    ),
    **dict.fromkeys(("os.environ.get", "os.getenv", "os.path.join"), STR),
    "xdevice.to_numpy": ARRAY,
    "xdevice.sync": NONE,
    "random.randint": INT,
    "platform.system": STR,
    # GluonCV's helper returns the module
    "gluoncv.utils.filesystem.try_import_decord": make_value("foreign", "decord"),
    **{
        f"{root}.{name}": TENSOR
        for root in ("paddle", "tensorflow", "tensorflow.math")  # torch.equal returns a bool
        for name in "equal not_equal less less_than less_equal greater greater_than greater_equal".split()
    },
}

BUILTINS: Final[dict[str, Value]] = {
    **dict.fromkeys(("int", "len", "id", "ord"), INT),
    **dict.fromkeys(("str", "repr", "format", "chr", "input"), STR),
    **dict.fromkeys(("bool", "isinstance", "hasattr", "callable"), BOOL),
    "round": union(INT, FLOAT),
    "float": FLOAT,
    "print": NONE,
    **dict.fromkeys(("type", "getattr"), UNKNOWN),
}
"""Maps built-in functions of Python to their results, if these do not depend on the
arguments."""
# the values of literals, by the type of the constant
CONSTANTS: Final[dict[type, Value]] = {
    bool: BOOL,
    int: INT,
    float: FLOAT,
    str: STR,
    type(None): NONE,
}
# the values that Python's built-in types stand for, in annotations and in `type=` of argparse
PLAIN_TYPES: Final[dict[str, Value]] = {
    "int": INT,
    "float": FLOAT,
    "bool": BOOL,
    "str": STR,
    "None": NONE,
}
TYPES: Final[dict[str, Value]] = {
    **dict.fromkeys(
        """
        torch.Tensor torch.LongTensor torch.FloatTensor paddle.Tensor tensorflow.Tensor jax.Array
        """.split(),
        TENSOR,
    ),
    "torch.device": make_value("device"),
    **{name: make_value("result", name) for name in ("torch.Stream", "torch.cuda.Stream")},
    "torch.nn.Module": make_value("model", "torch.nn.Module"),
    "paddle.nn.Layer": make_value("model", "paddle.nn.Layer"),
    "torch.optim.Optimizer": make_value("optimizer"),
}
"""Maps the full names of frameworks' types to the values that an annotation with the type
allows."""
TRANSPARENT_DECORATORS: Final = set(
    """
    staticmethod classmethod property override typing.override abc.abstractmethod functools.wraps functools.lru_cache
    functools.cache functools.cached_property functools.partial torch.no_grad torch.enable_grad torch.inference_mode
    torch.compile torch.jit.script torch.jit.export torch.jit.ignore torch.utils.data.functional_datapipe
    tensorflow.function jax.jit jax.checkpoint paddle.no_grad paddle.jit.to_static
    """.split()
)
"""Decorators that change neither the arguments nor the result of their function."""
# the same for decorators that are recognized by the ends of their names
TRANSPARENT_ENDINGS: Final = (".setter", ".getter", ".custom_fwd", ".register")

DEVICE_MAKERS: Final = {
    "torch.device",
    "torch.accelerator.current_accelerator",
    *(f"mxnet.{name}" for name in "cpu gpu cpu_pinned Context context.Context".split()),
    *(
        f"mxnet.{part}.{name}"
        for part in ("npx", "context", "device")
        for name in ("cpu", "gpu")
    ),
    *(f"paddle.{name}" for name in "CUDAPlace CPUPlace base.CPUPlace CUDAPinnedPlace".split()),
    *(
        f"d2l.{tab}.{name}"
        for tab in ("torch", "mxnet", "paddle", "jax")
        for name in ("cpu", "gpu", "try_gpu")
    ),
    *(
        f"xdevice.{part}{name}"
        for part in ("", "native.")
        for name in ("try_gpu", "gpu", "cpu", "device")
    ),
}
"""Functions that return a device."""
DEVICE_LISTS: Final = {"xdevice.native.try_all_gpus", "xdevice.try_all_gpus"}
COPIES: Final = {"copy.copy", "copy.deepcopy", "xdevice.to_device", "xdevice.copy_to"}
"""Functions that are assumed to return the same value as their first argument."""

LAYERS: Final = {
    "torch.nn",
    "paddle.nn",
    "mxnet.gluon.nn",
    "mxnet.gluon.rnn",
    "mxnet.gluon.loss",
    "tensorflow.keras.layers",
    "tensorflow.keras.losses",
    "keras.layers",
    "tensorflow.keras",
    "keras",
}
"""The modules whose classes are layers, models and losses."""
# classes in the modules `LAYERS` that are not layers
_NO_MODELS: Final = {
    "Parameter",
    "ParameterList",
    "ParameterDict",
    "ParamAttr",
    "Input",
    "InputSpec",
}
# modules and functions whose calls return whole models
_MODEL_FUNCTIONS: Final = tuple(
    """
    torchvision.models paddle.vision.models gluoncv.model_zoo gluoncv.torch.model_zoo mxnet.gluon.model_zoo
    timm.create_model tensorflow.keras.applications torch.hub
    """.split()
)
_RETURNING_SEVERAL: Final = {"LSTM", "GRU", "RNN", "MultiheadAttention", "LSTMCell"}
"""Layers that return several tensors."""
_DATASETS: Final = ("torchvision.datasets", "mxnet.gluon.data.vision", "paddle.vision.datasets")

MODEL_BASES: Final = set(
    """
    torch.nn.Module torch.nn.Sequential paddle.nn.Layer mxnet.gluon.Block mxnet.gluon.HybridBlock
    mxnet.gluon.nn.Block mxnet.gluon.nn.HybridBlock mxnet.gluon.nn.Sequential mxnet.gluon.nn.HybridSequential
    tensorflow.keras.Model tensorflow.keras.layers.Layer tensorflow.keras.Sequential tensorflow.Module
    paddle.nn.Sequential torch.nn.ModuleList
    """.split()
)
"""A class of the project that inherits from one of these classes is a model."""
# how the full names of models begin that `.to(device)` moves in place; Keras models have no
# such method
MOVED_IN_PLACE: Final = (
    "torch.nn.",
    "paddle.nn.",
    "torchvision.models.",
    "mxnet.gluon.",
    "gluoncv.",
)

# data loaders, which make batches from the items of their first argument
LOADERS: Final = {
    "torch.utils.data.DataLoader",
    "paddle.io.DataLoader",
    "mxnet.gluon.data.DataLoader",
    "torch_geometric.loader.DataLoader",
}
# data sets whose items are tuples with a tensor for each argument
TENSOR_SETS: Final = {
    "torch.utils.data.TensorDataset",
    "mxnet.gluon.data.ArrayDataset",
    "paddle.io.TensorDataset",
}

# methods of tensors that return one tensor, in any framework
_TENSOR_TO_TENSOR: Final = """
to cuda cpu xpu npu detach clone contiguous float half double long int bool bfloat16 type type_as view reshape
transpose permute flatten squeeze unsqueeze expand expand_as repeat t sum mean std var prod cumsum abs exp log sqrt pow
square sin cos tanh sigmoid relu softmax log_softmax argmax argmin clamp clip clamp_ add sub mul div add_ sub_ mul_
div_ matmul mm bmm mv dot eq ne lt le gt ge masked_fill masked_fill_ gather index_select masked_select scatter scatter_
zero_ fill_ normal_ uniform_ requires_grad_ detach_ pin_memory copy_ norm any all flip roll round floor ceil neg
astype as_in_ctx as_in_context copyto copy as_nd_ndarray as_np_ndarray swapaxes expand_dims tile slice_axis
broadcast_to argsort reshape_like zeros_like ones_like cast unsqueeze_ squeeze_ tril triu diag new_zeros new_ones
new_full new_empty new_tensor sign isnan nonzero bernoulli multinomial index_copy index_add lerp view_as
reciprocal rsqrt outer cross cumprod bitwise_and logical_not logical_and narrow select unfold movedim gather_nd
value read_value assign assign_add assign_sub block_until_ready set dot true_divide byte erf
addmm baddbmm histc exponential_ random_ T
"""
TENSOR_METHODS: Final[dict[str, Value]] = {
    **dict.fromkeys(_TENSOR_TO_TENSOR.split(), TENSOR),
    **dict.fromkeys(("numpy", "asnumpy"), ARRAY),
    # it returns an int if the tensor contains whole numbers. A float is the cautious choice,
    # because it cannot be the index of a GPU
    **dict.fromkeys(("item", "asscalar"), FLOAT),
    **dict.fromkeys(
        ("dim", "numel", "nelement", "get_device", "ndimension", "element_size", "__len__"), INT
    ),
    **dict.fromkeys(
        ("backward", "wait_to_read", "attach_grad", "retain_grad", "register_hook"), NONE
    ),
    **dict.fromkeys(("is_contiguous", "is_floating_point"), BOOL),
    **dict.fromkeys(("sort", "topk"), tuple_of([TENSOR, TENSOR])),
}
"""Maps methods of tensors to their results. `max`, `min` and `size` are left out, because their
results depend on the arguments."""
TENSOR_LISTS: Final = {"split": TENSOR, "chunk": TENSOR, "unbind": TENSOR, "tolist": UNKNOWN}
"""Maps each method of a tensor that returns a list to the possible values of the list's
items."""
TENSOR_ATTRIBUTES: Final[dict[str, Value]] = {
    **dict.fromkeys(("T", "mT", "grad", "data", "real", "imag", "H"), TENSOR),
    **dict.fromkeys(("device", "ctx", "context", "place"), make_value("device")),
    **dict.fromkeys(("ndim", "nbytes", "itemsize"), INT),
    **dict.fromkeys(("requires_grad", "is_cuda", "is_leaf"), BOOL),
    "dtype": make_value("dtype"),
}
TEXT_METHODS: Final[dict[str, Value]] = {
    "split": UNKNOWN,
    **dict.fromkeys(("startswith", "endswith", "isdigit"), BOOL),
}
"""Maps methods of strings to their results. All methods that are not listed here return a
string."""
DEVICE_ATTRIBUTES: Final[dict[str, Value]] = {
    "type": STR,
    "index": INT,
    "device_type": STR,
    "device_id": INT,
}
MODEL_METHODS: Final = set(
    "to cuda cpu xpu train eval float half double bfloat16 requires_grad_ apply type".split()
)
"""Methods of a PyTorch model that return the model itself."""
RESULT_ATTRIBUTES: Final[dict[tuple[str, str], Value]] = {
    ("accelerate.Accelerator", "device"): make_value("device"),
    ("accelerate.PartialState", "device"): make_value("device"),
    ("torch.distributed.device_mesh", "device_type"): STR,
}
"""The values of the attributes of objects that functions outside the project return. The keys
are the full name of the function, and the name of the attribute."""
GLUONS_OUTPUT: Final = make_value("result", "mxnet.gluon.output")
"""The result of calling a model of a Gluon model zoo: an MXNet array, or several."""
DECORDS_ARRAY: Final = make_value("result", "decord.array")
"""A decord array on the host. Some of its methods have the same names as methods of MXNet's
arrays."""


def result_of_call(full_name: str) -> Value | None:
    """Returns the possible results of calling the function or class with this full name; None
    if it is in no table."""
    if full_name in _CALLS:
        return _CALLS[full_name]
    root, _, name = full_name.rpartition(".")
    # in these modules, the names of classes begin with a capital letter, but those of functions
    # do not
    if root in LAYERS and name[:1].isupper() and name not in _NO_MODELS:
        return make_value("model", full_name)
    # model zoos also have functions that return whole models; their names have small letters
    if full_name.startswith(_MODEL_FUNCTIONS):
        return make_value("model", full_name)
    # so many functions of these modules return tensors that only the exceptions are listed
    if root in _ALL_TENSORS and name not in _NO_TENSORS and name[:1].islower():
        return TENSOR
    # `numpy.load`, for example, may return an archive of several arrays, and `numpy.random.random` a number
    if full_name.startswith("numpy.") and name not in {"random", "load"}:
        return ARRAY
    if root in {"torch.optim", "paddle.optimizer", "tensorflow.keras.optimizers"}:
        return make_value("optimizer")
    if root in _DATASETS and name[:1].isupper():
        return make_value("result", "dataset")
    return None


def output_of_model(full_name: str) -> Value | None:
    """Returns the possible results of calling a layer or model; None if they are not known. `full_name` is the full
    name of the class of the layer or model. For a model from a model zoo, `full_name` is the full name of the function
    that returned the model.
    """
    root, _, name = full_name.rpartition(".")
    if full_name.startswith(("gluoncv.model_zoo", "mxnet.gluon.model_zoo")):
        return GLUONS_OUTPUT
    if name in _RETURNING_SEVERAL or root not in LAYERS:
        return None
    # the results of a base class such as `Module` are not known, but `Sequential` passes a
    # tensor through its layers
    if full_name in MODEL_BASES and not name.endswith("Sequential"):
        return None
    return TENSOR


def is_model(atom: Atom) -> bool:
    """Whether an atom is a framework's layer or model, or an object of a class of the project
    that inherits from a layer or model."""
    if atom.kind == "model":
        return True
    return atom.kind == "instance" and not MODEL_BASES.isdisjoint(atom.subject.foreign_bases)
