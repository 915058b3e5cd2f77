"""Faults of what every adapter has: which framework it is, its dtypes, its devices and their scopes."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np

from xdevice.base import devices, dtypes
from xdevice.contract import DeviceInfo

from .planting import (
    HOMES,
    VIRTUAL,
    child,
    swap,
    toy,
    wrong,
)


@wrong("classify", "mistakes lists for tensors", "types_are_told_apart")
def classify_takes_lists_for_tensors(adapter, patch, suite):
    classify = adapter.classify
    patch.setattr(adapter, "classify", lambda cls: "tensor" if cls is list else classify(cls))


@wrong("classify", "mistakes models for tensors", "types_are_told_apart")
def classify_takes_models_for_tensors(adapter, patch, suite):
    classify = adapter.classify
    patch.setattr(adapter, "classify", lambda cls: "tensor" if classify(cls) else None)


@wrong("classify", "mistakes devices for models", "types_are_told_apart")
def classify_takes_devices_for_models(adapter, patch, suite):
    classify = adapter.classify
    patch.setattr(
        adapter, "classify", lambda cls: "model" if cls is toy().Place else classify(cls)
    )


@wrong(
    "dtype_names", "gives a name that is not among its dtypes", "keeps_the_contract", HOMES[:1]
)
def dtype_names_gives_a_name_that_is_none_of_its_dtypes(adapter, patch, suite):
    patch.setattr(type(adapter), "dtype_names", {np.dtype("float16"): "half"})


@wrong("dtype_names", "confuses two dtypes", "dtypes_are_the_same_everywhere")
def dtype_names_takes_one_dtype_for_another(adapter, patch, suite):
    dtype = np.dtype("int32")
    patch.setattr(dtypes, "_framework_names", {type(dtype): {dtype: "int64"}})


@wrong("version", "returns a string that is not a version", "keeps_the_contract", HOMES[:1])
def version_gives_a_text_that_is_not_a_version(adapter, patch, suite):
    patch.setattr(type(adapter), "version", property(lambda self: "newest"))


@wrong("framework", "returns another module", "keeps_the_contract", HOMES[:1])
def framework_gives_another_module(adapter, patch, suite):
    patch.setattr(type(adapter), "framework", property(lambda self: np))


@wrong(
    "dtypes",
    "uses names of dtypes that no other framework uses",
    "keeps_the_contract",
    HOMES[:1],
)
def dtypes_names_dtypes_as_no_other_framework_does(adapter, patch, suite):
    patch.setattr(adapter, "dtypes", adapter.dtypes | {"half"})


@wrong(
    "dtypes",
    "lists a dtype that its tensors cannot hold",
    "a_dtype_is_refused_if_and_only_if_it_would_be_narrowed",
)
def dtypes_names_a_dtype_that_its_tensors_do_not_keep(adapter, patch, suite):
    from_numpy = adapter.from_numpy
    patch.setattr(
        adapter, "from_numpy", lambda array, device: from_numpy(_narrow(array), device)
    )


def _narrow(array):
    with np.errstate(all="ignore"):
        return array.astype("float32") if array.dtype.name == "float64" else array


swap(
    "count",
    "counts one GPU too many",
    "every_device_works",
    lambda count, adapter: lambda kind: count(kind) + (kind == "gpu"),
    HOMES[:1],
    raises=(RuntimeError,),
)
swap(
    "count",
    "misses the last GPU",
    "the_devices_are_those_of_the_framework",
    lambda count, adapter: lambda kind: count(kind) - (kind == "gpu"),
    HOMES[:1],
)
swap(
    "count",
    "claims to have devices of every kind",
    "the_devices_are_those_of_the_framework",
    lambda count, adapter: lambda kind: count(kind) or 1,
    HOMES[:1],
)
child(
    "count",
    "starts the GPUs",
    "loading_is_light_locked_and_safe_to_fork",
    """
count = cls.count
def starting(self, kind):
    for place in toyframe.places():
        toyframe.current_stream(place)
    return count(self, kind)
cls.count = starting
""",
)
swap(
    "describe",
    "returns no name",
    "devices_are_described",
    lambda _, adapter: lambda device: DeviceInfo("", 1 << 30),
)
swap(
    "describe",
    "returns no amount of memory",
    "devices_are_described",
    lambda _, adapter: lambda device: DeviceInfo("toy", 0),
)
swap(
    "describe",
    "returns the memory in gigabytes, as a float",
    "devices_are_described",
    lambda _, adapter: lambda device: DeviceInfo("toy", 1.5),
)
_LACKS = "what_a_device_lacks_is_refused_before_anything_moves_and_the_rest_is_held"
swap(
    "lacks",
    "says that the CPU lacks a dtype",
    _LACKS,
    lambda _, adapter: lambda device: {"float64"},
)
swap(
    "lacks",
    "says that float32 is missing",
    _LACKS,
    lambda _, adapter: lambda device: {"float32"},
)
swap(
    "lacks",
    "uses the framework's own names of dtypes",
    _LACKS,
    lambda _, adapter: lambda device: {"double"},
)


@wrong("lacks", "does not list a dtype that the GPU narrows", _LACKS)
def lacks_forgets_a_dtype_that_the_gpu_narrows(adapter, patch, suite):
    from_numpy = adapter.from_numpy
    patch.setattr(
        adapter,
        "from_numpy",
        lambda x, device: from_numpy(_narrow(x) if device.kind == "gpu" else x, device),
    )


swap(
    "is_started",
    "never notices that a device was used",
    "a_device_that_was_used_is_started",
    lambda _, adapter: lambda device: False,
)
child(
    "is_started",
    "says that an unused GPU was used",
    "loading_is_light_locked_and_safe_to_fork",
    "cls.is_started = lambda self, device: True",
)
swap(
    "to_native",
    "returns the first GPU for all",
    "every_device_goes_to_its_native_object_and_back",
    lambda to_native, adapter: lambda device: to_native(devices.of(device.kind)),
)
swap(
    "to_native",
    "returns a new object that is equal to no other",
    "every_device_goes_to_its_native_object_and_back",
    lambda to_native, adapter: lambda device: object(),
)
swap(
    "describe_missing",
    "returns the first GPU for all",
    "a_missing_device_can_be_described_or_is_refused",
    lambda describe, adapter: lambda device: describe(devices.of(device.kind)),
)
swap(
    "describe_missing",
    "returns a string, although devices are objects",
    "a_missing_device_can_be_described_or_is_refused",
    lambda _, adapter: str,
)
swap(
    "from_native",
    "mistakes every object for cpu:0",
    "every_device_goes_to_its_native_object_and_back",
    lambda from_native, adapter: lambda x: from_native(x) or devices.CPU,
)
swap(
    "from_native",
    "ignores the index",
    "every_device_goes_to_its_native_object_and_back",
    lambda from_native, adapter: (
        lambda x: devices.of(x.kind) if isinstance(x, toy().Place) else None
    ),
)
swap(
    "from_native",
    "recognizes no native device",
    "every_device_goes_to_its_native_object_and_back",
    lambda from_native, adapter: lambda x: None,
)
swap(
    "scope",
    "does nothing",
    "a_scope_places_what_the_framework_creates",
    lambda _, adapter: lambda device: contextlib.nullcontext(),
)


class _Forgetful:
    """A scope that goes back to the CPU, wherever it was, or stays where it is."""

    def __init__(self, adapter, device, stays=False):
        self.place, self.stays = adapter.to_native(device), stays

    def __enter__(self):
        toy().state.place = self.place

    def __exit__(self, *error):
        toy().state.place = self.place if self.stays else toy().CPU


swap(
    "scope",
    "returns to the CPU, not to the enclosing scope",
    "a_scope_places_what_the_framework_creates",
    lambda _, adapter: lambda device: _Forgetful(adapter, device),
)


@wrong("scope", "never ends", "a_scope_ends_after_an_exception")
def scope_is_never_left(adapter, patch, suite):
    patch.setattr(toy().state, "place", toy().CPU)
    patch.setattr(adapter, "scope", lambda device: _Forgetful(adapter, device, stays=True))


def _of_the_process(adapter, patch, is_left):
    """Scopes that change what is there for all threads."""
    held = SimpleNamespace(place=toy().CPU)
    patch.setattr(
        type(adapter.samples()),
        "native_ones",
        lambda self, *shape: toy().full(shape, 1, held.place),
    )

    @contextlib.contextmanager
    def scope(device):
        before, held.place = held.place, adapter.to_native(device)
        yield
        held.place = before if is_left else held.place

    patch.setattr(adapter, "scope", scope)


@wrong("scope", "changes the default of all threads", "a_scope_holds_for_one_thread")
def scope_changes_the_default_of_all_threads(adapter, patch, suite):
    _of_the_process(adapter, patch, is_left=True)


@wrong("scope", "changes it permanently", "scopes_of_threads_leave_each_other_alone")
def scope_changes_it_for_good(adapter, patch, suite):
    _of_the_process(adapter, patch, is_left=False)


@wrong(
    "scope", "stays active after its block", "the_default_device_holds_until_it_is_set_again"
)
def scope_does_not_end(adapter, patch, suite):
    patch.setattr(toy().state, "place", toy().CPU)
    patch.setattr(adapter, "scope", lambda device: _Staying(adapter, device))


class _Staying(_Forgetful):
    def __exit__(self, *error):
        pass


@wrong(
    "require",
    "accepts a device that does not exist",
    "a_missing_device_is_refused_before_anything_happens",
)
def require_lets_a_device_pass_that_does_not_exist(adapter, patch, suite):
    patch.setattr(adapter, "require", lambda device: device)


child(
    "describe",
    "mistakes virtual GPUs for real ones",
    VIRTUAL,
    "from xdevice.contract import Backend, DeviceInfo\ncls.describe = lambda self, device: DeviceInfo('Toy', None)",
)


@wrong(
    "framework",
    "is imported without `loader.importing`",
    "loading_is_light_locked_and_safe_to_fork",
    HOMES[:1],
)
def framework_is_imported_without_loader_importing(adapter, patch, suite):
    suite.child_setup = (
        "import contextlib as c; from xdevice.contract import loader; "
        "loader.importing = lambda **_: c.nullcontext()"
    )
