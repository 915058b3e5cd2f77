"""The conformance suite bites: adapters sabotaged one property at a time must each fail it.

Every sabotage names the check that must catch it. The same check must hold, and not be skipped, without the sabotage.
"""

from __future__ import annotations

import copy
import ctypes
import gc
from contextlib import contextmanager, nullcontext, suppress
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.suite_runs import failures
from toy_faults import FAULTS

import xdevice
from xdevice import nn
from xdevice.contract.dlpack import Lent
from xdevice.execution import waiting
from xdevice.math.arithmetic import lookup, namespace
from xdevice.tensors import creation
from xdevice.testing import Conformance

PLANTED = []


def caught_by(check, *backends):
    """Marks a function that breaks one property, and the check that must notice on each of the backends."""

    def register(plant):
        sample = next(name for name in ("numpy", "torch", *backends) if name in backends)
        for name in backends:
            each_time = (
                name == "numpy" and check != "test_loading_is_light_locked_and_safe_to_fork"
            )
            marks = (
                ()
                if each_time
                else pytest.mark.slow
                if name == sample != "tensorflow"
                else pytest.mark.long
            )
            PLANTED.append(
                pytest.param(plant, check, name, id=f"{plant.__name__}-{name}", marks=marks)
            )
        return plant

    return register


# copies


@caught_by(
    "test_copy_to_is_new_storage_on_the_same_device",
    "torch",
    "tensorflow",
    "paddle",
    "mxnet",
    "jax",
    "numpy",
)
def copy_to_gives_an_alias(adapter, patch, suite):
    patch.setattr(adapter, "copy", lambda x, device: x)


@caught_by("test_copy_to_is_new_storage_on_the_same_device", "tensorflow")
def copy_to_by_identity(adapter, patch, suite):
    patch.setattr(adapter, "copy", lambda x, device: adapter.framework.identity(x))


@caught_by("test_copy_to_is_new_storage_on_the_same_device", "jax")
def copy_to_by_device_put(adapter, patch, suite):
    patch.setattr(
        adapter,
        "copy",
        lambda x, device: adapter.framework.device_put(x, adapter.to_native(device)),
    )


@caught_by("test_copy_to_is_new_storage_on_the_same_device", "torch")
def copy_to_by_to(adapter, patch, suite):
    patch.setattr(adapter, "copy", lambda x, device: x.to(adapter.to_native(device)))


@caught_by(
    "test_gradients_flow_through_a_copy_on_the_same_device",
    "torch",
    "tensorflow",
    "paddle",
    "mxnet",
)
def copy_to_cuts_the_gradient(adapter, patch, suite):
    patch.setattr(
        adapter, "copy", lambda x, device: adapter.from_numpy(adapter.to_numpy(x), device)
    )


@caught_by("test_requires_grad_stays", "torch", "paddle")
def copy_to_forgets_requires_grad(adapter, patch, suite):
    patch.setattr(
        adapter, "copy", lambda x, device: adapter.from_numpy(adapter.to_numpy(x), device)
    )


# numbers, devices, waiting, and the end of the process


@caught_by("test_item_gives_a_python_number", "torch", "numpy")
def numbers_are_read_as_floats(adapter, patch, suite):
    to_numpy = adapter.to_numpy
    patch.setattr(adapter, "to_numpy", lambda x: to_numpy(x).astype("float64"))


@caught_by("test_try_gpu_gives_what_is_there", "torch", "numpy")
def the_framework_s_own_devices_are_left_out(adapter, patch, suite):
    patch.setattr(xdevice.native, "try_all_gpus", list)


@caught_by("test_sync_takes_every_target", "torch", "numpy")
def anything_at_all_is_waited_for(adapter, patch, suite):
    patch.setattr(waiting, "refuse_non_container", lambda x, what: None)


@caught_by("test_a_process_ends_in_the_middle_of_a_prefetch", "torch")
def the_program_s_end_kills_the_threads_of_prefetch(adapter, patch, suite):
    suite.child_setup = """
import os, signal
from xdevice.performance import workers
workers.at_exit(lambda: os.kill(os.getpid(), signal.SIGABRT))
"""


# conversion


@caught_by(
    "test_converting_shares_memory_only_where_it_says_so",
    "torch",
    "tensorflow",
    "paddle",
    "mxnet",
    "jax",
)
def convert_shares_what_should_be_a_copy(adapter, patch, suite):
    convert = xdevice.convert
    patch.setattr(xdevice, "convert", lambda x, name, copy=None: convert(x, name))


@caught_by("test_converting_to_numpy_and_back_keeps_every_tensor", "torch", "paddle", "mxnet")
def convert_gives_the_bytes_of_a_bool(adapter, patch, suite):
    from_buffer = type(adapter).from_buffer

    def from_bytes(array):
        return from_buffer(adapter, array.view("uint8") if array.dtype == bool else array)

    patch.setattr(adapter, "from_buffer", from_bytes)


# memory that is asked for before it is computed


def unwaited(x):
    """An array of MXNet's as `memory_of` and MXNet's own exports see it, which do not wait for this one."""
    return SimpleNamespace(
        handle=x.handle, shape=x.shape, dtype=x.dtype, ndim=x.ndim, wait_to_read=lambda: None
    )


@caught_by("test_where_write_writes_is_known", "mxnet")
def an_address_is_asked_for_before_there_is_memory(adapter, patch, suite):
    memory_of = adapter.memory_of
    patch.setattr(adapter, "memory_of", lambda x: memory_of(unwaited(x)))


@caught_by("test_what_is_read_is_computed_first", "mxnet")
def what_is_peeked_at_is_not_waited_for(adapter, patch, suite):
    export = adapter.framework.nd.to_dlpack_for_read
    patch.setattr(adapter, "peek", lambda x: Lent(export(unwaited(x))).numpy_view())


@caught_by("test_what_is_read_is_computed_first", "mxnet")
def what_is_exported_is_not_waited_for(adapter, patch, suite):
    export = adapter.framework.nd.to_dlpack_for_read
    patch.setattr(adapter, "finish", lambda x: None)
    patch.setattr(adapter.framework.nd, "to_dlpack_for_write", lambda x: export(unwaited(x)))


@caught_by("test_what_is_read_is_computed_first", "jax")
def what_is_read_is_not_waited_for(adapter, patch, suite):
    def read(x):
        memory = (ctypes.c_uint8 * x.nbytes).from_address(x.unsafe_buffer_pointer())
        return np.frombuffer(memory, x.dtype).reshape(x.shape)

    patch.setattr(adapter, "to_numpy", read)


# kernels


@caught_by("test_a_namespace_is_whole_or_refused", "torch", "numpy")
def putting_writes_into_the_tensor(adapter, patch, suite):
    def put(x, indices, values):
        x[indices] = values
        return x

    patch.setattr(adapter.namespace(), "put", put, raising=False)


@caught_by("test_a_namespace_is_whole_or_refused", "torch", "numpy")
def einsum_sorts_the_axes_of_its_result(adapter, patch, suite):
    kernels = adapter.namespace()
    original = kernels.einsum

    def einsum(subscripts, tensors):
        inputs, arrow, result = subscripts.partition("->")
        return original(inputs + arrow + "".join(sorted(result)), tensors)

    patch.setattr(kernels, "einsum", einsum)


# functions of layers

LAYERS = (
    "test_functions_of_layers_are_whole_and_right_or_refused",
    "numpy",
    "torch",
    "tensorflow",
    "paddle",
    "mxnet",
)


@caught_by(*LAYERS)
def logarithms_have_a_bound(adapter, patch, suite):
    kernels, xp = adapter.nn(), adapter.namespace()
    original = kernels.log_softmax
    patch.setattr(
        kernels,
        "log_softmax",
        lambda x, axis: xp.maximum(original(x, axis), xp.number(-64, "float32", x)),
    )


@caught_by(*LAYERS)
def losses_are_added(adapter, patch, suite):
    kernels = adapter.nn()
    original = kernels.cross_entropy
    patch.setattr(kernels, "cross_entropy", lambda logits, labels: original(logits, labels) * 2)


@caught_by(*LAYERS)
def convolutions_are_those_of_mathematics(adapter, patch, suite):
    kernels, xp = adapter.nn(), adapter.namespace()
    original = kernels.conv2d
    patch.setattr(
        kernels, "conv2d", lambda x, kernel, *rest: original(x, xp.flip(kernel, (2, 3)), *rest)
    )


@caught_by(*LAYERS)
def height_and_width_change_places(adapter, patch, suite):
    kernels = adapter.nn()
    original = kernels.conv2d
    patch.setattr(kernels, "conv2d", lambda *given: original(*given[:-1], given[-1][::-1]))


@caught_by(*LAYERS)
def pools_are_padded_with_zeros(adapter, patch, suite):
    kernels, xp = adapter.nn(), adapter.namespace()
    original = kernels.max_pool2d

    def pool(x, size, stride, padding):
        made = original(x, size, stride, padding)
        return made if padding == (0, 0) else xp.maximum(made, xp.number(0, "float32", x))

    patch.setattr(kernels, "max_pool2d", pool)


@caught_by(*LAYERS)
def one_hot_is_always_float32(adapter, patch, suite):
    kernels = adapter.nn()
    original = kernels.one_hot
    patch.setattr(kernels, "one_hot", lambda indices, n, name: original(indices, n, "float32"))


@caught_by(*LAYERS)
def dropout_forgets_what_is_kept(adapter, patch, suite):
    kernels = adapter.nn()
    original = kernels.dropout
    patch.setattr(kernels, "dropout", lambda x, mask, keep: original(x, mask, 1.0))


@caught_by(*LAYERS)
def labels_are_said_to_be_guarded_that_are_not(adapter, patch, suite):
    kernels = adapter.nn()
    original = kernels.cross_entropy

    def clipped(logits, labels):
        known = adapter.to_numpy(labels).clip(0, logits.shape[1] - 1)
        return original(logits, adapter.from_numpy(known, xdevice.device_of(labels)))

    patch.setattr(kernels, "cross_entropy", clipped)
    patch.setattr(kernels, "guards", lambda labels, kind: True, raising=False)


@caught_by(*LAYERS)
def the_ends_of_labels_are_those_of_the_first(adapter, patch, suite):
    def ends(indices):
        return [int(adapter.to_numpy(indices)[0])] * 2

    patch.setattr(adapter.nn(), "ends", ends, raising=False)


# gradients


@caught_by("test_gradients_are_right_or_refused", "torch", "paddle")
def gradients_are_written_into_what_is_computed_with(adapter, patch, suite):
    value_and_grad = adapter.value_and_grad

    def by_backward(leaves, call, nested):
        def calling(inputs):
            loss, rest = call(inputs)
            loss.backward(retain_graph=True)
            return loss, rest

        return value_and_grad(leaves, calling, nested)

    patch.setattr(adapter, "value_and_grad", by_backward)


@caught_by("test_gradients_nest_or_are_refused", "torch", "paddle")
def the_gradient_of_a_gradient_is_cut(adapter, patch, suite):
    value_and_grad = adapter.value_and_grad
    patch.setattr(
        adapter,
        "value_and_grad",
        lambda leaves, call, nested: value_and_grad(leaves, call, False),
    )


@caught_by("test_an_update_is_in_memory_of_its_own", "torch", "paddle", "mxnet", "numpy")
def a_rule_gets_the_parameters_themselves(adapter, patch, suite):
    patch.setattr(
        adapter, "update", lambda rows, rule, nested, writes: [rule(*row) for row in rows]
    )


# moves


@caught_by("test_to_device_gives_the_same_object_where_it_is_there", "torch", "mxnet", "numpy")
def to_device_copies_what_is_there(adapter, patch, suite):
    patch.setattr(xdevice, "to_device", xdevice.copy_to)


@caught_by("test_requires_grad_stays", "torch")
def to_device_detaches(adapter, patch, suite):
    patch.setattr(adapter, "move", lambda x, device: x.detach().to(adapter.to_native(device)))


@caught_by("test_gradients_flow_there_and_back", "tensorflow", "mxnet")
def to_device_cuts_the_gradient(adapter, patch, suite):
    patch.setattr(
        adapter, "move", lambda x, device: adapter.from_numpy(adapter.to_numpy(x), device)
    )


@caught_by("test_to_device_moves_and_leaves_the_source", "tensorflow", "mxnet", "jax", "torch")
def to_device_does_not_move(adapter, patch, suite):
    patch.setattr(adapter, "move", lambda x, device: adapter.copy(x, adapter.device_of(x)))


@caught_by("test_to_device_moves_and_leaves_the_source", "tensorflow", "mxnet", "jax")
def to_device_loses_the_values(adapter, patch, suite):
    move = adapter.move
    patch.setattr(
        adapter,
        "move",
        lambda x, device: move(x - x, device) if str(x.dtype) != "bool" else move(x, device),
    )


@caught_by(
    "test_a_missing_device_is_refused_before_anything_happens",
    "torch",
    "tensorflow",
    "mxnet",
    "jax",
    "numpy",
)
def a_missing_device_is_placed_softly(adapter, patch, suite):
    patch.setattr(adapter, "require", lambda device: None)
    patch.setattr(adapter, "move", lambda x, device: x)


@caught_by("test_containers_keep_their_shape_and_types", "torch", "numpy")
def a_shared_tensor_is_copied_twice(adapter, patch, suite):
    def forgetful(x, device):
        from xdevice.containers import trees

        if not trees.is_container(x):
            return copy_to(x, device)
        return trees.map_leaves(
            x, lambda xs: [copy_to(y, device) if hasattr(y, "shape") else y for y in xs]
        )

    copy_to = xdevice.copy_to
    patch.setattr(xdevice, "copy_to", forgetful)


# creation and reading


@caught_by("test_tensor_never_aliases_its_source", "torch")
def tensor_aliases_its_source(adapter, patch, suite):
    patch.setattr(
        adapter, "from_numpy", lambda array, device: adapter.framework.from_numpy(array)
    )


@caught_by("test_tensor_never_aliases_its_source", "jax")
def tensor_aliases_an_aligned_source(adapter, patch, suite):
    patch.setattr(
        adapter, "from_numpy", lambda array, device: adapter.framework.numpy.asarray(array)
    )


@caught_by("test_to_numpy_never_aliases", "torch", "numpy")
def to_numpy_aliases(adapter, patch, suite):
    patch.setattr(creation, "_read", lambda backend, x: backend.to_numpy(x))


@caught_by("test_dtypes_are_the_same_everywhere", "torch", "numpy")
def floats_become_float64(adapter, patch, suite):
    patch.setattr(creation, "_default_dtype", lambda data, array: array.dtype.name)


@caught_by("test_creators_place_where_they_are_told", "tensorflow", "mxnet", "jax")
def creators_ignore_the_device(adapter, patch, suite):
    full = adapter.full
    patch.setattr(
        adapter,
        "full",
        lambda shape, value, device, dtype: full(shape, value, xdevice.cpu(), dtype),
    )


@caught_by(
    "test_a_scope_places_what_the_framework_creates", "torch", "tensorflow", "mxnet", "jax"
)
def a_scope_does_nothing(adapter, patch, suite):
    patch.setattr(adapter, "scope", lambda device: nullcontext())


@caught_by("test_a_scope_holds_for_one_thread", "jax")
def a_scope_changes_the_default_of_all_threads(adapter, patch, suite):
    config = adapter.framework.config

    @contextmanager
    def scope(device):
        before = config.jax_default_device
        config.update("jax_default_device", adapter.to_native(device))
        yield
        config.update("jax_default_device", before)

    patch.setattr(adapter, "scope", scope)


@caught_by("test_a_scope_ends_after_an_exception", "tensorflow", "mxnet", "jax", "torch")
def a_scope_never_ends(adapter, patch, suite):
    class Endless:
        def __init__(self, device):
            self.inner = scope(device)

        def __enter__(self):
            return self.inner.__enter__()

        def __exit__(self, *error):
            left_open.append(self.inner)

    scope, left_open = adapter.scope, []
    patch.setattr(adapter, "scope", Endless)
    # the suite must see it; then it is closed for the tests that follow
    suite.left_open = left_open


# comparing


@caught_by("test_a_mismatch_is_found_and_named", "torch", "tensorflow", "mxnet", "jax")
def a_mismatch_is_never_found(adapter, patch, suite):
    patch.setattr(xdevice, "check_same_device", lambda *xs, **named: None)


@caught_by("test_a_mismatch_is_found_and_named", "torch", "mxnet")
def everything_is_on_one_device(adapter, patch, suite):
    patch.setattr(xdevice, "same_device", lambda *xs: True)


@caught_by("test_a_spread_model_is_a_named_mismatch", "torch", "tensorflow", "mxnet")
def only_the_first_variable_is_looked_at(adapter, patch, suite):
    look = adapter.model_devices
    patch.setattr(adapter, "model_devices", lambda model: list(look(model))[:1])


# waiting


@caught_by("test_errors_of_asynchronous_work_surface_at_sync", "mxnet", "jax")
def sync_waits_for_nothing(adapter, patch, suite):
    patch.setattr(xdevice, "sync", lambda *targets: None)


@caught_by("test_errors_of_asynchronous_work_surface_at_sync", "mxnet", "jax")
def sync_of_a_tensor_waits_for_nothing(adapter, patch, suite):
    patch.setattr(adapter, "wait", lambda x: None)


@caught_by("test_sync_waits_for_work_under_way", "jax")
def sync_of_everything_waits_for_nothing(adapter, patch, suite):
    patch.setattr(adapter, "synchronize", lambda device: None)


# models


@caught_by("test_a_model_moves_in_place_with_its_values", "torch", "tensorflow", "mxnet")
def a_model_does_not_move(adapter, patch, suite):
    patch.setattr(adapter, "move_model", lambda model, device: None)


@caught_by("test_a_model_moves_in_place_with_its_values", "torch", "tensorflow", "mxnet")
def a_copy_moves_instead_of_the_model(adapter, patch, suite):
    patch.setattr(
        adapter, "move_model", lambda model, device: adapter.copy_model(model, device)
    )


@caught_by("test_a_model_moves_in_place_with_its_values", "tensorflow")
def a_keras_move_loses_the_values(adapter, patch, suite):
    def move_and_forget(model, device):
        move(model, device)
        for variable in getattr(model, "variables", [model]):
            variable.assign(adapter.framework.zeros(variable.shape, variable.dtype))

    move = adapter.move_model
    patch.setattr(adapter, "move_model", move_and_forget)


@caught_by("test_a_moved_model_trains_on_as_if_it_had_stayed", "tensorflow")
def the_optimizer_trains_dead_variables(adapter, patch, suite):
    def replace(model, device):
        tf = adapter.framework
        for variable in model.variables:
            with tf.device(adapter.to_native(device)):
                variable._value = tf.Variable(variable.numpy(), trainable=variable.trainable)

    patch.setattr(adapter, "move_model", replace)


@caught_by("test_shared_parameters_stay_shared", "torch")
def shared_parameters_are_torn_apart(adapter, patch, suite):
    def tear(model, device):
        torn = copy_model(model, device)
        torn[1].weight = adapter.framework.nn.Parameter(torn[1].weight.detach().clone())
        return torn

    copy_model = adapter.copy_model
    patch.setattr(adapter, "copy_model", tear)


@caught_by("test_a_copied_model_shares_nothing", "torch")
def a_copied_model_shares_its_storage(adapter, patch, suite):
    patch.setattr(adapter, "copy_model", lambda model, device: copy.copy(model))


@caught_by(
    "test_variables_are_those_of_the_state_dict", "torch", "tensorflow", "mxnet", "paddle"
)
def variables_are_those_of_another_model(adapter, patch, suite):
    variables = adapter.variables
    patch.setattr(
        adapter,
        "variables",
        lambda model: [(name, value + 1) for name, value in variables(model)],
    )


@caught_by(
    "test_a_shared_variable_comes_under_both_names", "torch", "tensorflow", "mxnet", "paddle"
)
def a_shared_variable_comes_once(adapter, patch, suite):
    variables = adapter.variables
    patch.setattr(
        adapter,
        "variables",
        lambda model: {id(x): (name, x) for name, x in variables(model)}.values(),
    )


@caught_by("test_an_unbuilt_model_is_refused", "tensorflow", "mxnet")
def an_unbuilt_model_counts_as_empty(adapter, patch, suite):
    patch.setattr(adapter, "model_devices", lambda model: [])


# loading


@caught_by("test_loading_is_light_locked_and_safe_to_fork", "torch", "mxnet")
def no_lock_around_loading(adapter, patch, suite):
    suite.child_setup = (
        "import contextlib as c; from xdevice.contract import loader; "
        "loader.importing = lambda **_: c.nullcontext()"
    )


@caught_by("test_loading_is_light_locked_and_safe_to_fork", "numpy")
def importing_xdevice_imports_a_framework(adapter, patch, suite):
    suite.child_setup = "import torch"


@caught_by("test_eight_threads_at_once", "mxnet")
def threads_see_other_threads_devices(adapter, patch, suite):
    patch.setattr(adapter, "copy", lambda x, device: x)


# several devices


@caught_by(
    "test_a_tensor_splits_and_joins", "torch", "tensorflow", "paddle", "mxnet", "jax", "numpy"
)
def the_last_part_is_dropped(adapter, patch, suite):
    split = adapter.split
    patch.setattr(
        adapter, "split", lambda x, sizes: [*split(x, sizes)[:-1], split(x, sizes)[-1][:0]]
    )


@caught_by("test_a_tensor_splits_and_joins", "torch", "jax")
def parts_are_joined_the_other_way_round(adapter, patch, suite):
    join = adapter.join
    patch.setattr(adapter, "join", lambda parts: join(parts[::-1]))


@caught_by("test_a_leaf_is_a_copy_that_asks_for_gradients", "torch", "paddle", "numpy")
def a_leaf_is_the_tensor_itself(adapter, patch, suite):
    patch.setattr(adapter, "leaf", lambda x, device: adapter.samples().marked(x))


@caught_by("test_a_leaf_is_a_copy_that_asks_for_gradients", "torch", "paddle", "mxnet")
def a_leaf_is_a_plain_copy(adapter, patch, suite):
    patch.setattr(adapter, "leaf", adapter.copy)


@caught_by(
    "test_write_puts_values_into_the_memory_that_is_there",
    "torch",
    "tensorflow",
    "paddle",
    "mxnet",
    "numpy",
)
def nothing_is_written(adapter, patch, suite):
    patch.setattr(adapter, "write", lambda x, value: None)


@caught_by("test_a_total_is_new_and_keeps_its_dtype", "torch", "numpy")
def the_first_summand_is_written(adapter, patch, suite):
    def total(tensors, mean):
        first, *rest = tensors
        for x in rest:
            first += x
        return first

    patch.setattr(adapter, "total", total)


@caught_by("test_a_total_is_new_and_keeps_its_dtype", "tensorflow", "paddle", "jax")
def a_mean_is_a_sum(adapter, patch, suite):
    total = adapter.total
    patch.setattr(adapter, "total", lambda tensors, mean: total(tensors, False))


@caught_by(
    "test_all_reduce_gives_both_devices_the_same",
    "torch",
    "tensorflow",
    "paddle",
    "mxnet",
    "jax",
    "numpy",
)
def only_the_first_device_has_the_sum(adapter, patch, suite):
    all_reduce = adapter.all_reduce
    copies = adapter.copy
    patch.setattr(
        adapter,
        "all_reduce",
        lambda xs, mean: [
            all_reduce([copies(x, xdevice.device_of(x)) for x in xs], mean)[0],
            xs[1],
        ],
    )


@caught_by("test_all_reduce_gives_both_devices_the_same", "torch", "paddle", "mxnet")
def the_sum_is_in_new_tensors(adapter, patch, suite):
    all_reduce = adapter.all_reduce
    copies = adapter.copy
    patch.setattr(
        adapter,
        "all_reduce",
        lambda xs, mean: all_reduce([copies(x, xdevice.device_of(x)) for x in xs], mean),
    )


def forget_kernels():
    """The core reads an adapter's kernels once, so it has to read those that were replaced anew."""
    lookup._all_checks.clear()
    for one in (namespace._lookup, nn._lookup):
        one._made.clear()
        one.by_type.clear()


@pytest.mark.parametrize(("plant", "check", "name"), PLANTED)
def test_a_sabotaged_adapter_fails_the_suite(plant, check, name, monkeypatch):
    suite = type("Suite", (Conformance,), {"backend": name})
    assert failures(suite, check) == []
    with suite().select():
        plant(xdevice.backend(name), monkeypatch, suite)
    forget_kernels()
    caught = failures(suite, check)
    monkeypatch.undo()
    forget_kernels()
    for scope in getattr(suite, "left_open", ()):
        scope.__exit__(None, None, None)
    with suppress(Exception), suite().select():
        xdevice.sync()  # what was left to fail
    errors = [type(failure.error) for failure in caught]
    caught.clear()
    if name == "jax":
        gc.collect()  # the tracebacks hold failed arrays, for which it raises again at each sync
    assert errors, f"{check} does not notice"
    assert not issubclass(errors[0], pytest.skip.Exception)


def test_every_check_has_a_fault_that_it_must_notice():
    checks = {
        name for part in Conformance.__mro__ for name in vars(part) if name.startswith("test_")
    }
    planted = {param.values[1] for param in PLANTED} | {fault.check for fault in FAULTS}
    assert checks - planted == set()
    assert planted - checks == set()
