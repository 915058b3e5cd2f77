"""The table of vendor-specific names. For each name, it contains the replacement (*word*) that
`port` writes and `lint` recommends.

There are two targets. "accelerator" means PyTorch's own vendor-neutral words: `torch.accelerator`, `torch.Stream`,
`torch.Event`. Other frameworks have no such words. "xdevice" means xdevice's words; if xdevice has no word for a name,
the word of "accelerator" is used. A version in the table is the first release of PyTorch in which the word works as it
is used here.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

Target = Literal["xdevice", "accelerator"]
TARGETS: Final[tuple[Target, ...]] = ("xdevice", "accelerator")


class Version(NamedTuple):
    """A release of PyTorch: 2.10 is later than 2.9."""

    major: int
    minor: int

    def __str__(self) -> str:
        # without this, messages would show a tuple
        return f"{self.major}.{self.minor}"


def version(text: str) -> Version:
    """Returns the release that a string such as "2.9" or "2.9.1" names. All numbers after the
    first two are ignored.

    Raises:
        ValueError: if the string does not have one of these forms.
    """
    # not `float`, for which 2.10 would be before 2.9
    match = re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)*", text.strip())
    if match is None:
        raise ValueError(f"expected a PyTorch release such as 2.9, got {text!r}")
    return Version(int(match[1]), int(match[2]))


class Goal(NamedTuple):
    """Selects the words that `port` writes: the words for `target` that exist in the release
    `minimum` of PyTorch. If `minimum` is None, the words may need the newest release."""

    target: Target = "xdevice"
    minimum: Version | None = None


DEFAULT_GOAL: Final = Goal()
"""The goal of commands without options: xdevice's words, and any release of PyTorch."""


class Row(NamedTuple):
    """One vendor-specific name, and the word that replaces it for each of the targets
    "accelerator" and "xdevice". The word is "" if the target has no replacement.

    `since` is the oldest release of PyTorch that has the word for "accelerator"; it is "" if every supported release
    has the word. `rule` names the rule that rewrites a call of the name; it is a key of `rules_of_words.WORD_RULES`. On
    a machine without a GPU, some words raise an error although the old name returns a value. For these words,
    `without_gpu` is the value that the old name returns, as source text; for all others, it is None. `differs` says how
    the word differs from the old name or, if there is no word, why there is none.
    """

    name: str
    accelerator: str = ""
    since: str = ""
    rule: str = "renamed"
    without_gpu: str | None = None
    differs: str = ""
    xdevice: str = ""

    def is_too_new(self, goal: Goal) -> bool:
        """Whether the oldest release of PyTorch that the goal allows lacks the word."""
        return (
            goal.minimum is not None and bool(self.since) and version(self.since) > goal.minimum
        )

    def word(self, target: Target) -> str:
        """Returns the word that `port` writes for a target; "" if the target has none."""
        return (self.xdevice or self.accelerator) if target == "xdevice" else self.accelerator

    @property
    def advice(self) -> str:
        """The recommendation in the messages of lint: the words of both targets, joined by
        "or". If neither target has a word, it says that there is no replacement, and why."""
        # xdevice's word comes first, because it works with every framework
        words = []
        if self.xdevice:
            words.append(self.xdevice)
        if self.accelerator:
            words.append(
                f"{self.accelerator} (PyTorch {self.since})" if self.since else self.accelerator
            )
        return " or ".join(words) if words else f"it has no replacement: {self.differs}"


def _same_name_rows(
    names: str, since: str, without_gpu: str | None = None, differs: str = ""
) -> list[Row]:
    """Returns rows for functions of `torch.cuda` that have the same names in `torch.accelerator`. The names in `names`
    are separated by white space. The other arguments are fields of `Row`, and are the same in all rows."""
    return [
        Row(
            f"torch.cuda.{name}",
            f"torch.accelerator.{name}()",
            since,
            without_gpu=without_gpu,
            differs=differs,
        )
        for name in names.split()
    ]


def _device_module_rows(names: str, without_gpu: str | None = None) -> list[Row]:
    """Returns rows for functions of `torch.cuda` that other vendors' modules, such as `torch.xpu`, also have. The word
    calls the function of the same name in the module of the current accelerator. The names in `names` are separated by
    white space; `without_gpu` is a field of `Row`."""
    differs = "calls the function of torch.cuda, torch.xpu and so on; a module without it raises AttributeError"
    word = "torch.get_device_module()"
    return [
        Row(
            f"torch.cuda.{name}",
            f"{word}.{name}()",
            "2.4",
            without_gpu=without_gpu,
            differs=differs,
        )
        for name in names.split()
    ]


def _without_word(names: str, why: str) -> list[Row]:
    """Returns rows for names that have no replacement. The names in `names` are separated by white space; `why` is the
    reason, which is the same for all names.
    """
    return [Row(name, differs=why) for name in names.split()]


ACCELERATOR: Final = "torch.accelerator.current_accelerator()"
AVAILABLE: Final = "torch.accelerator.is_available()"
_SEED: Final = "torch.manual_seed(seed) if the line before sets that seed on all devices"
_OFF: Final = "disabled if there is no accelerator, as before"
_GRAPHS: Final = (
    "torch.accelerator.Graph (2.12) refuses CUDA: https://github.com/pytorch/pytorch/pull/171313; "
    "xdevice.accelerator.make_graphed_callable(function) records and replays a function"
)

# a test compares this table with that in docs/reference/words.md, so both have the same order
_TORCH: Final = (
    # choosing a device
    Row(
        "torch.cuda.is_available",
        AVAILABLE,
        "2.6",
        differs="true on any vendor's accelerator",
        xdevice="xdevice.num_gpus() > 0",
    ),
    Row(
        "torch.cuda.device_count",
        "torch.accelerator.device_count()",
        "2.6",
        xdevice="xdevice.num_gpus()",
    ),
    Row(
        'torch.device("cuda")',
        ACCELERATOR,
        "2.6",
        differs="means the current accelerator; xdevice's device is printed with an index",
        xdevice="xdevice.native.gpu()",
    ),
    Row(
        'device="cuda"',
        f"device={ACCELERATOR}",
        "2.6",
        differs="map_location= is rewritten in the same way",
        xdevice="device=xdevice.native.gpu()",
    ),
    Row(
        '"cuda" if torch.cuda.is_available() else "cpu"',
        f'{ACCELERATOR}.type if {AVAILABLE} else "cpu"',
        "2.6",
        differs="the same string on CUDA",
        xdevice="xdevice.native.try_gpu().type",
    ),
    # uses that have no full name; `rules` and `neutral_sites` recognize each by its form
    Row('x.to("cuda")', f"x.to({ACCELERATOR})", "2.6", xdevice="xdevice.to_device(x, device)"),
    Row(
        "x.cuda()", f"x.to({ACCELERATOR})", "2.6", xdevice="xdevice.to_device(x, xdevice.gpu())"
    ),
    Row("x.is_cuda", f"x.device.type == str({ACCELERATOR})", "2.6"),
    Row('device.type == "cuda"', f"device.type == str({ACCELERATOR})", "2.6"),
    # the current device, waiting, streams
    Row("torch.cuda.current_device", "torch.accelerator.current_device_index()", "2.7"),
    Row("torch.cuda.set_device", "torch.accelerator.set_device_index(i)", "2.7"),
    Row(
        "torch.cuda.device",
        "torch.accelerator.device_index(i)",
        "2.8",
        "device_scope",
        differs="takes an index, so a device becomes its index",
    ),
    Row(
        "torch.cuda.synchronize",
        "torch.accelerator.synchronize()",
        "2.6",
        xdevice="xdevice.sync()",
    ),
    *_same_name_rows(
        "current_stream", "2.6", differs="has native_handle (2.12) instead of cuda_stream"
    ),
    *_same_name_rows("set_stream", "2.6"),
    Row(
        "torch.cuda.stream",
        "with stream:",
        "2.7",
        "stream_scope",
        differs="before 2.12, a stream cannot be entered twice: https://github.com/pytorch/pytorch/pull/176568",
    ),
    Row(
        "torch.cuda.Stream",
        "torch.Stream()",
        "2.7",
        differs="has native_handle (2.12) instead of cuda_stream",
    ),
    Row(
        "torch.cuda.Event",
        "torch.Event()",
        "2.7",
        "event",
        differs="takes keyword arguments only",
    ),
    Row(
        "torch.cuda.is_current_stream_capturing",
        "torch.accelerator.current_stream().is_capturing()",
        "2.12",
        "replaced",
        "False",
    ),
    *_without_word("torch.cuda.default_stream", "only a vendor's module has a default stream"),
    *_without_word(
        "torch.cuda.CUDAGraph torch.cuda.graph torch.cuda.make_graphed_callables torch.cuda.graph_pool_handle",
        _GRAPHS,
    ),
    # memory; the last argument is `without_gpu`, the value that torch.cuda returns without a
    # GPU
    *_same_name_rows("empty_cache", "2.9", "None"),
    *_same_name_rows(
        "memory_allocated max_memory_allocated memory_reserved max_memory_reserved", "2.9", "0"
    ),
    *_same_name_rows("memory_stats", "2.9", "{}"),
    *_same_name_rows("reset_peak_memory_stats reset_accumulated_memory_stats", "2.9"),
    Row("torch.cuda.mem_get_info", "torch.accelerator.get_memory_info()", "2.10"),
    Row(
        "torch.cuda.memory_cached",
        "torch.accelerator.memory_reserved()",
        "2.9",
        without_gpu="0",
    ),
    Row(
        "torch.cuda.max_memory_cached",
        "torch.accelerator.max_memory_reserved()",
        "2.9",
        without_gpu="0",
    ),
    Row(
        "torch.cuda.reset_max_memory_allocated",
        "torch.accelerator.reset_peak_memory_stats()",
        "2.9",
    ),
    Row(
        "torch.cuda.reset_max_memory_cached",
        "torch.accelerator.reset_peak_memory_stats()",
        "2.9",
    ),
    Row(
        "torch.cuda.OutOfMemoryError", "torch.OutOfMemoryError", "2.5", differs="the same class"
    ),
    *_without_word(
        "torch.cuda.memory_summary torch.cuda.memory_snapshot torch.cuda.ipc_collect",
        "a feature of CUDA's allocator",
    ),
    Row("x.pin_memory()", differs="neutral as it is: it pins for the current accelerator"),
    # random numbers
    *(
        Row(
            f"torch.cuda.{name}",
            f"torch.get_device_module().{name}(seed)",
            "2.4",
            "seed",
            "None",
            _SEED,
        )
        for name in ("manual_seed", "manual_seed_all")
    ),
    Row("torch.cuda.get_rng_state", "torch.accelerator.random.get_rng_state()", "2.14"),
    Row(
        "torch.cuda.get_rng_state_all",
        "torch.accelerator.random.get_rng_state_all()",
        "2.14",
        without_gpu="[]",
    ),
    Row("torch.cuda.initial_seed", "torch.accelerator.random.initial_seed()", "2.14"),
    *_device_module_rows("set_rng_state set_rng_state_all", "None"),
    *_without_word(
        "torch.cuda.seed torch.cuda.seed_all", "torch.seed() draws a new seed for the CPU, too"
    ),
    # mixed precision: the old names in torch.cuda.amp, and the new names with the argument
    # "cuda"
    *(
        Row(name, f"{word}({ACCELERATOR}.type)", "2.6", "with_device", differs=_OFF)
        for word in ("torch.autocast", "torch.amp.GradScaler")
        for name in (f"torch.cuda.amp.{word.rpartition('.')[2]}", f'{word}("cuda")')
    ),
    *_without_word(
        "torch.cuda.amp.custom_fwd torch.cuda.amp.custom_bwd",
        "torch.amp.custom_fwd and custom_bwd (2.4) take the device type when the function is defined",
    ),
    # the properties and features of a device
    *_device_module_rows("get_device_name get_device_properties is_initialized"),
    *_device_module_rows("is_bf16_supported", "False"),
    *_without_word(
        "torch.cuda.get_device_capability",
        "returns the version of a CUDA architecture, which other vendors do not have",
    ),
    *_without_word(
        "torch.cuda.init", "not needed: every accelerator is initialized at its first use"
    ),
    *_without_word(
        "torch.cuda.utilization torch.cuda.temperature torch.cuda.power_draw",
        "reads the value from NVIDIA's library",
    ),
    *_without_word(
        "torch.cuda.FloatTensor torch.cuda.LongTensor torch.cuda.HalfTensor",
        "use torch.tensor(..., device=device)",
    ),
    *_without_word(
        "torch.cuda.nvtx.range_push torch.cuda.nvtx.range_pop",
        "use torch.profiler.record_function, which names a block of code",
    ),
    *_without_word(
        "torch.profiler.ProfilerActivity.CUDA",
        "torch.profiler.supported_activities() lists the available ones",
    ),
    *_without_word(
        "torch.cuda",
        "torch.get_device_module() returns the module of the current accelerator, or of the CPU if there is none",
    ),
    *_without_word("torch.cuda.nccl.version", "a property of NVIDIA's library"),
    # several processes
    Row(
        'torch.distributed.init_process_group("nccl")',
        f"torch.distributed.get_default_backend_for_device({ACCELERATOR})",
        "2.6",
        "nccl",
        differs="the collectives of the current accelerator: nccl, xccl or hccl",
    ),
)

# `neutral_sites` recognizes `_NEUTRAL` by its beginning, "neutral as"
_OWN: Final = "only PyTorch has neutral words"
_NEUTRAL: Final = "neutral as it is"

# names that have no word for "accelerator": --to accelerator does not change them
_PADDLE: Final = (
    Row(
        "paddle.is_compiled_with_cuda",
        xdevice="xdevice.num_gpus() > 0",
        differs="checks the machine, not the build of the framework; rewritten only with --only safe or likely",
    ),
    Row("paddle.device.cuda.device_count", xdevice="xdevice.num_gpus()", differs=_OWN),
    Row("paddle.device.cuda.synchronize", xdevice="xdevice.sync()", differs=_OWN),
    Row(
        "paddle.device.cuda.memory_allocated",
        xdevice="xdevice.memory(device).allocated",
        differs=_OWN,
    ),
    Row(
        "paddle.device.cuda.max_memory_allocated",
        xdevice="xdevice.memory(device).peak",
        differs=_OWN,
    ),
    Row("paddle.CUDAPlace", xdevice="xdevice.native.gpu(i)", differs=_OWN),
    Row(
        'paddle.set_device("gpu:0")', xdevice="xdevice.set_default_device(device)", differs=_OWN
    ),
    *_without_word(
        "paddle.device.cuda.Stream paddle.device.cuda.Event paddle.device.cuda.stream_guard",
        "xdevice.accelerator.Stream and xdevice.accelerator.Event have different methods",
    ),
    *_without_word(
        "paddle.device.cuda.empty_cache", "frees the cache of Paddle's own allocator"
    ),
    Row("paddle.CUDAPinnedPlace", differs="xdevice manages pinned memory itself"),
)

_MXNET: Final = (
    Row("mxnet.gpu", xdevice="xdevice.native.gpu(i)", differs=_OWN),
    Row("mxnet.context.num_gpus", xdevice="xdevice.num_gpus()", differs=_OWN),
    Row("mxnet.npx.num_gpus", xdevice="xdevice.num_gpus()", differs=_OWN),
    Row("mxnet.npx.waitall", xdevice="xdevice.sync()", differs=_NEUTRAL),
    Row("x.as_in_ctx(ctx)", xdevice="xdevice.to_device(x, device)", differs=_NEUTRAL),
    Row("mxnet.cpu_pinned", differs="xdevice manages pinned memory itself"),
)

_TENSORFLOW: Final = (
    Row(
        'tensorflow.config.list_physical_devices("GPU")',
        xdevice="xdevice.num_gpus()",
        differs="rewritten if only its length or truth value is used; GPU means the GPUs of every vendor",
    ),
    Row("tensorflow.test.is_gpu_available", xdevice="xdevice.num_gpus() > 0", differs=_NEUTRAL),
    Row(
        "tensorflow.test.is_built_with_cuda",
        xdevice="xdevice.num_gpus() > 0",
        differs="checks the machine, not the build of the framework; rewritten only with --only safe or likely",
    ),
    Row(
        'tensorflow.device("/GPU:1")',
        xdevice="tensorflow.device(xdevice.native.gpu(1))",
        differs=_NEUTRAL,
    ),
    *_without_word(
        "tensorflow.config.experimental.set_memory_growth",
        "a setting of TensorFlow's own allocator",
    ),
)

_JAX: Final = (
    Row(
        'jax.devices("gpu")[i]',
        xdevice="xdevice.native.gpu(i)",
        differs="jax.devices()[i] is a device of the default kind",
    ),
    Row(
        'jax.device_count("gpu")',
        xdevice="xdevice.num_gpus()",
        differs="JAX raises if there is no GPU",
    ),
    Row("jax.device_put", xdevice="xdevice.to_device(x, device)", differs=_NEUTRAL),
    *_without_word("jax.default_backend", "returns the name of the vendor's platform"),
    *_without_word("jax.local_devices", "lists devices as JAX's own objects"),
)

TABLE: Final[tuple[Row, ...]] = (*_TORCH, *_PADDLE, *_MXNET, *_TENSORFLOW, *_JAX)
ROWS: Final[dict[str, Row]] = {row.name: row for row in TABLE}
"""Maps names to rows. A name is a full name such as "torch.cuda.synchronize" or, for a use that has no full name, its
spelling, such as "x.cuda()". All full names of a function are mapped to the same row."""
_OTHER_NAMES: Final = {
    "mxnet.gpu": "mxnet.npx.gpu mxnet.context.gpu mxnet.device.gpu",
    "mxnet.context.num_gpus": "mxnet.device.num_gpus",
    "paddle.is_compiled_with_cuda": "paddle.device.is_compiled_with_cuda",
    'paddle.set_device("gpu:0")': "paddle.set_device paddle.device.set_device",
}
ROWS.update(
    (other, ROWS[name]) for name, others in _OTHER_NAMES.items() for other in others.split()
)
