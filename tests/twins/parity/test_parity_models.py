"""Models of two frameworks side by side: equal ones are equal whatever their layouts, and a fault is named."""

from __future__ import annotations

import re
from itertools import permutations

import numpy as np
import pytest
from helpers.environment import WITH_MODELS

import xdevice
from xdevice.core import registry
from xdevice.twins.parity.comparing import compare_leaves
from xdevice.twins.parity.record_files import Recording
from xdevice.twins.parity.recording import recording_to
from xdevice.twins.parity.tolerances import Strictness

PAIRS = list(permutations(WITH_MODELS, 2))


@pytest.fixture(scope="module", autouse=True)
def _frameworks():
    for name in WITH_MODELS:
        xdevice.backend(name)


def torch_like(nn, convolution, norm, bias):
    return nn.Sequential(
        convolution(4, 4, 3, **bias),
        norm(4),
        nn.ReLU(),
        nn.Linear(4, 4),
        nn.Linear(4, 4, **bias),
        nn.LayerNorm(4),
    )


def network(name, bias=True):
    """A convolution, a BatchNorm, two square Linears and a LayerNorm; no bias in the first and the fourth."""
    if name == "torch":
        from torch import nn

        return torch_like(nn, nn.Conv2d, nn.BatchNorm2d, {"bias": bias})
    if name == "paddle":
        from paddle import nn

        return torch_like(nn, nn.Conv2D, nn.BatchNorm2D, {} if bias else {"bias_attr": False})
    if name == "mxnet":
        from mxnet.gluon import nn

        block = nn.HybridSequential()
        block.add(
            nn.Conv2D(4, 3, in_channels=4, use_bias=bias), nn.BatchNorm(in_channels=4), nn.Activation("relu"),
            nn.Dense(4, in_units=4), nn.Dense(4, in_units=4, use_bias=bias), nn.LayerNorm(in_channels=4),
        )  # fmt: skip
        block.initialize()
        return block
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((7, 7, 4)), layers.Conv2D(4, 3, use_bias=bias),
            layers.BatchNormalization(epsilon=1e-5, momentum=0.9), layers.ReLU(),
            layers.Dense(4), layers.Dense(4, use_bias=bias), layers.LayerNormalization(epsilon=1e-5),
        ]
    )  # fmt: skip


def pair(one, other):
    """Two equal models, of random numbers."""
    source, target = network(one), network(other)
    rng = np.random.default_rng(0)
    change(source, lambda name, x: rng.random(x.shape).astype(x.dtype))
    xdevice.load(xdevice.models.convert_state(source, other, like=target), into=target)
    return source, target


def change(model, how):
    """Writes `how(name, values)` into each variable."""
    backend = registry.owner_and_kind(type(model))[0]
    for name, variable in backend.variables(model):
        values = backend.to_numpy(variable).copy()
        new = np.array(how(name, values), order="C")
        backend.write(variable, backend.from_numpy(new, backend.device_of(variable)))


def second_linear(model):
    """The names of its weight and bias, in the model's own framework."""
    backend = registry.owner_and_kind(type(model))[0]
    return [part.name for part in list(backend.layers(model))[3].parts]


def difference(actual, expected, **how):
    with pytest.raises(xdevice.errors.ParityError) as caught:
        xdevice.assert_parity(actual, expected, **how)
    return caught.value.comparison


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_equal_models_of_two_frameworks_are_equal(one, other):
    source, target = pair(one, other)
    xdevice.assert_parity(source, target, check_device=True)
    xdevice.assert_parity({"nets": [source, 1]}, {"nets": (target, 1)})


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_one_weight_off_is_named_in_both_frameworks(one, other):
    source, target = pair(one, other)
    weight, place = second_linear(target)[0], (1, 2)

    def off(name, x):
        if name == weight:
            x[place] += 1e-3
        return x

    change(target, off)
    found = difference({"net": source}, {"net": target})
    assert (found.problem, found.leaf, found.worst, found.off) == (
        "values",
        f"['net'].{weight}",
        place,
        1,
    )
    assert found.abs == pytest.approx(1e-3, rel=1e-3)
    theirs = second_linear(source)[0]
    assert theirs == weight or f"{theirs} of {one}" in found.text


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_one_square_kernel_transposed_is_named(one, other):
    source, target = pair(one, other)
    weight = second_linear(target)[0]
    change(target, lambda name, x: x.T if name == weight else x)
    found = difference(source, target)
    assert (found.problem, found.leaf) == ("values", weight)
    assert "equal if one is transposed" in found.text


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_missing_bias_is_named_on_either_side(one, other):
    source, target = network(one), network(other, bias=False)
    found = difference(source, target)
    assert found.problem == "structure"
    for bias in (
        next(layer.parts[1].name for layer in xdevice.backend(one).layers(source)),
        second_linear(source)[1],
    ):
        assert f"\n  {bias}: {other} has no bias in this" in found.text
    assert second_linear(source)[1] in difference({"n": target}, {"n": source}).text


def lstm():
    import keras
    from torch import nn

    ours, theirs = (
        nn.LSTM(3, 4, batch_first=True),
        keras.Sequential([keras.Input((5, 3)), keras.layers.LSTM(4)]),
    )
    xdevice.load(xdevice.models.convert_state(ours, "tensorflow", like=theirs), into=theirs)
    return ours, theirs


def test_two_biases_are_compared_as_their_sum_in_both_directions():
    ours, theirs = lstm()
    xdevice.assert_parity(ours, theirs)
    xdevice.assert_parity(theirs, ours)
    change(ours, lambda name, x: x + 1e-3 * (name == "bias_hh_l0"))
    one_way, other_way = difference(ours, theirs), difference(theirs, ours)
    for found in (one_way, other_way):
        assert (found.leaf, found.off) == ("lstm/lstm_cell/bias", 16)
        assert "bias_ih_l0 and bias_hh_l0 of torch" in found.text
        # each way may show another element: all are as far apart
        apart = found.actual - found.expected
        assert apart == pytest.approx(1e-3 if found is one_way else -1e-3, rel=1e-2)


@pytest.mark.parametrize(("one", "other"), [("torch", "paddle"), ("paddle", "torch")])
def test_the_count_of_batches_is_never_missing(one, other):
    source, target = pair(one, other)
    xdevice.assert_parity(source, target)
    xdevice.assert_parity(xdevice.models.convert_state(source, other, like=target), target)


@pytest.mark.parametrize("name", WITH_MODELS)
def test_layers_of_one_framework_with_other_names_are_paired(name):
    source, renamed = network(name), {"torch": "ModuleDict", "paddle": "LayerDict"}.get(name)
    if renamed is None:  # Keras and Gluon number their layers anew for each model
        xdevice.load(
            xdevice.models.convert_state(source, name, like=(twin := network(name))), into=twin
        )
        xdevice.assert_parity(twin, source)
        return
    nn = xdevice.backend(name).framework.nn
    (one, other), place = (
        (getattr(nn, renamed)({key: nn.Linear(4, 4)}) for key in ("one", "two")),
        (1, 2),
    )
    xdevice.load(xdevice.models.convert_state(one, name, like=other), into=other)
    xdevice.assert_parity(one, other)
    change(
        other,
        lambda path, x: (
            x + 1e-3 * np.eye(4, dtype=x.dtype)[place[0], place[1] - 1] * (x.ndim == 2)
        ),
    )
    assert difference(one, other).leaf == "two.weight"


def test_a_layer_of_one_framework_that_is_laid_out_otherwise_is_compared_as_it_computes():
    import torch

    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    linear, twin = torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.nn.Sequential(conv1d(4, 4))
    twin.load_state_dict(linear.state_dict())
    found = difference({"net": linear}, {"net": twin})
    assert (found.leaf, "equal if one is transposed" in found.text) == (
        "['net'].0.weight",
        True,
    )
    xdevice.load(xdevice.models.convert_state(linear, "torch", like=twin), into=twin)
    xdevice.assert_parity(linear, twin)
    xdevice.assert_parity(twin, linear)


def test_modules_of_two_libraries_of_one_framework_are_paired():
    eqx, nnx = pytest.importorskip("equinox"), pytest.importorskip("flax.nnx")
    jax = xdevice.backend("jax").framework
    ours = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    theirs = eqx.nn.Linear(4, 4, key=jax.random.key(0))
    assert difference(ours, theirs).problem == "values"
    swapped = eqx.tree_at(
        lambda x: (x.weight, x.bias), theirs, (ours.kernel[...], ours.bias[...])
    )
    assert difference(ours, swapped).leaf == "weight"  # Equinox has its weight transposed
    right = eqx.tree_at(
        lambda x: (x.weight, x.bias), theirs, (ours.kernel[...].T, ours.bias[...])
    )
    # JAX's libraries do not list layers without parameters
    assert difference(ours, right).problem == "settings"
    xdevice.assert_parity(xdevice.models.convert_state(ours, "jax", like=right), right)


@pytest.mark.parametrize("name", ["torch", "paddle"])
def test_two_classes_of_one_name_are_not_one_class(name):
    nn = xdevice.backend(name).framework.nn
    base = nn.Module if name == "torch" else nn.Layer

    def written(turns):
        class Own(base):
            def __init__(self):
                super().__init__()
                self.weight = nn.Linear(4, 4).weight

            def forward(self, x):
                return x @ (self.weight.T if turns else self.weight)

        if turns:
            Own.__qualname__ += " of another file"
        return nn.Sequential(Own())

    one, same, other = written(False), written(False), written(True)
    for twin in (same, other):
        twin[0].weight = one[0].weight
    xdevice.assert_parity(one, same)
    found = difference(one, other)
    assert found.problem == "settings"
    assert "0: class is " in found.text


def test_shapes_kinds_and_open_pairs_are_differences():
    import paddle
    import torch

    found = difference(torch.nn.Linear(3, 4), paddle.nn.Linear(3, 5))
    assert (found.problem, "weight (4, 3) and (5, 3)" in found.text) == ("structure", True)
    assert (
        "kinds linear and embedding"
        in difference(torch.nn.Linear(3, 4), paddle.nn.Embedding(3, 4)).text
    )
    two = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    three = paddle.nn.Sequential(*(paddle.nn.Linear(4, 4) for _ in range(3)))
    found = difference([two], [three])
    assert "torch" in found.text
    assert "paddle" in found.text
    assert found.leaf.startswith("[0]")


def test_what_names_and_kinds_say_is_compared_as_a_state():
    import paddle
    import torch

    class Ours(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(2))
            self.one, self.two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    class Theirs(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.scale = self.create_parameter([2])
            self.first, self.second = paddle.nn.Linear(4, 4), paddle.nn.Linear(4, 4)

    ours, theirs = Ours(), Theirs()
    said = {
        "like": theirs,
        "names": {"one": "second", "two": "first"},
        "kinds": {"scale": "same"},
    }
    state = xdevice.models.convert_state(ours, "paddle", **said)
    xdevice.load(state, into=theirs)
    xdevice.assert_parity(state, theirs)
    xdevice.assert_parity(theirs, state)
    assert difference(ours, theirs).problem == "values"  # one is paired with first
    lacking = Theirs()
    del lacking.scale
    found = difference(ours, lacking)
    assert (found.problem, found.leaf) == ("structure", "scale")
    assert re.search(r"scale: .*settle.*\n  note .*assert_parity\(convert_state\(", found.text)
    unsaid = xdevice.models.convert_state(ours, "paddle", like=lacking)
    assert difference(unsaid, lacking).leaf == "scale"
    state["first.weight"] += 1e-3
    assert difference(state, theirs).leaf == "first.weight"
    del state["first.weight"]
    assert "actual has no first.weight" in difference(state, theirs).text
    # beside a model of another framework it is a dict
    assert "['scale']" in difference(state, ours).text


def with_head(nn, classes):
    model = nn.Sequential()
    for name, layer in (
        ("body", nn.Linear(4, 4)),
        ("act", nn.ReLU()),
        ("fc", nn.Linear(4, classes)),
    ):
        (model.add_module if hasattr(model, "add_module") else model.add_sublayer)(name, layer)
    return model


@pytest.mark.parametrize("other", ["paddle", "torch"])
def test_a_port_with_another_head_is_shown_without_it(other):
    import torch

    source, target = with_head(torch.nn, 3), with_head(xdevice.backend(other).framework.nn, 5)
    state = xdevice.models.convert_state(source, other, like=target, skip=["fc"])
    xdevice.load(state, into=target)
    xdevice.assert_parity(source, target, skip=["fc"])
    xdevice.assert_parity(target, source, skip=["fc"])
    xdevice.assert_parity(state, target)
    assert difference(source, target).problem in ("structure", "shape")
    change(target, lambda name, x: x + 1 if name == "body.bias" else x)
    assert difference(source, target, skip=["fc"]).leaf == "body.bias"
    assert difference(state, target).leaf == "body.bias"
    assert (
        "skip= names 'head', but neither model has parameters there"
        in difference(source, target, skip=["head"]).text
    )


def test_what_cannot_be_skipped_is_refused():
    import torch

    net = torch.nn.Linear(2, 2)
    with pytest.raises(
        xdevice.errors.ArgumentError, match="but actual and expected are not both models"
    ):
        xdevice.assert_parity({"fc": net}, {"fc": net}, skip=["fc"])
    with pytest.raises(
        xdevice.errors.ArgumentError,
        match="with inputs= the outputs of the models are compared",
    ):
        xdevice.parity.compare(net, net, inputs=torch.ones(1, 2), skip=["bias"])
    with pytest.raises(xdevice.errors.ArgumentError, match="expects a list of paths"):
        xdevice.parity.compare(net, net, skip="bias")


def test_a_variable_under_two_names_counts_once():
    import paddle
    import torch

    tied = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(2)))
    tied[1].weight = tied[0].weight
    loose = paddle.nn.Sequential(*(paddle.nn.Linear(4, 4, bias_attr=False) for _ in range(2)))
    xdevice.load(xdevice.models.convert_state(tied, "paddle", like=loose), into=loose)
    xdevice.assert_parity(tied, loose)
    xdevice.assert_parity(loose, tied)
    change(loose, lambda name, x: x + (name == "1.weight"))
    assert difference(tied, loose).leaf == "1.weight"
    assert "two different values" in difference(loose, tied).text


def test_dtypes_and_devices_are_those_of_the_models_themselves():
    import torch
    from mxnet.gluon import nn

    ours, theirs = torch.nn.Linear(4, 4), nn.Dense(4, in_units=4)
    theirs.initialize(ctx=xdevice.backend("mxnet").to_native(xdevice.device("cpu:1")))
    xdevice.load(xdevice.models.convert_state(ours, "mxnet", like=theirs), into=theirs)
    xdevice.assert_parity(ours, theirs)
    for found in (
        difference(ours, theirs, check_device=True),
        difference(theirs, ours, check_device=True),
    ):
        assert (found.problem, {found.actual, found.expected}) == ("device", {"cpu:0", "cpu:1"})
    found = difference(ours.double(), theirs)
    assert (found.problem, found.actual) == ("dtype", "float64")
    xdevice.assert_parity(ours, theirs, check_dtype=False)
    with pytest.raises(xdevice.errors.DTypeError, match="is bfloat16, but mxnet supports"):
        xdevice.assert_parity(ours.bfloat16(), theirs)


@pytest.mark.parametrize("given", ["the model", "its state"])
def test_recordings_of_models_compare_across_frameworks(tmp_path, given):
    import paddle
    import torch

    ours = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    theirs = paddle.nn.Sequential(paddle.nn.Linear(4, 3), paddle.nn.BatchNorm1D(3))
    xdevice.load(xdevice.models.convert_state(ours, "paddle", like=theirs), into=theirs)
    read = []
    for model, added in ((ours, 1), (theirs, 0)):
        with recording_to(tmp_path / str(len(read))):
            for _ in range(2):
                xdevice.parity.log(
                    "model",
                    model
                    if given == "the model"
                    else xdevice.models.convert_state(model, "numpy"),
                )
                change(model, lambda name, x, added=added: x + added * (name == "0.weight"))
        read.append(Recording(tmp_path / str(len(read))).entries)
    found = compare_leaves(read[0][0].read(), read[1][0].read(), Strictness(check_device=True))
    assert found.ok, found.text
    assert "num_batches_tracked" in found.text
    assert "only one side has it" in found.text
    found = compare_leaves(read[0][1].read(), read[1][1].read(), Strictness())
    assert found.problem == "values"
    assert "0.weight" in found.leaf
    assert "only one side has it" in found.text
    assert {leaf.owner.split()[0] for leaf in read[1][0].read()} == {
        "paddle" if given == "the model" else "numpy"
    }


def test_a_model_with_an_unknown_layer_is_recorded_as_it_is(tmp_path):
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.fc = torch.nn.Parameter(torch.ones(2)), torch.nn.Linear(2, 2)

    with recording_to(tmp_path):
        xdevice.parity.log(
            "net", {"net": Net(), "optimizer": torch.optim.SGD(Net().parameters())}
        )
    assert {leaf.path for leaf in Recording(tmp_path).entries[0].read()} >= {
        "['net'].scale",
        "['net'].fc.weight",
    }


def trained(name, eps=1e-5, momentum=0.1, dropout=0.1):
    if name == "torch":
        from torch import nn

        return nn.Sequential(
            nn.Linear(4, 4),
            nn.BatchNorm1d(4, eps, momentum),
            nn.Dropout(dropout),
            nn.Linear(4, 3),
        )
    if name == "paddle":
        from paddle import nn

        norm = nn.BatchNorm1D(4, 1 - momentum, eps)
        return nn.Sequential(nn.Linear(4, 4), norm, nn.Dropout(dropout), nn.Linear(4, 3))
    import keras
    from keras import layers

    norm = layers.BatchNormalization(epsilon=eps, momentum=1 - momentum)
    return keras.Sequential(
        [keras.Input((4,)), layers.Dense(4), norm, layers.Dropout(dropout), layers.Dense(3)]
    )


def parity_warning(actual, expected, inputs):
    with pytest.warns(
        UserWarning, match="the outputs agree, in evaluation mode, but these settings differ:"
    ) as caught:
        xdevice.assert_parity(actual, expected, inputs=inputs)
    return str(caught[0].message)


@pytest.mark.parametrize(
    "name", [name for name in ("paddle", "tensorflow", "torch") if name in WITH_MODELS]
)
def test_what_models_are_set_to_is_compared_before_they_run(name):
    source, x = trained("torch"), np.random.default_rng(0).normal(size=(6, 4)).astype("float32")

    def twin(**settings):
        model = trained(name, **settings)
        xdevice.load(xdevice.models.convert_state(source, name, like=model), into=model)
        return model

    xdevice.assert_parity(twin(), source, inputs=x)
    for setting, value in (("momentum", 0.2), ("dropout", 0.3)):
        text = parity_warning(twin(**{setting: value}), source, x)
        assert str(value) in text
        assert "p is" in text if setting == "dropout" else "momentum is" in text
    found = difference(twin(eps=1e-2, momentum=0.2), source, inputs=x)
    assert found.text.startswith("these settings differ:\n  1: ")
    assert (
        found.text.index("eps is")
        < found.text.index("the values differ")
        < found.text.index("the first layer")
    )
    assert any("momentum is" in line for line in found.settings)
    with pytest.raises(xdevice.errors.ArgumentError) as caught:
        xdevice.assert_parity(twin(momentum=0.2), source, inputs=x[:, :3])
    assert "momentum is" in caught.value.__notes__[0]


def test_what_optimizers_are_set_to_and_the_mode_are_compared():
    import torch

    net = trained("torch")
    one, other = (torch.optim.Adam(net.parameters(), eps=eps) for eps in (1e-8, 1e-7))
    assert difference(one, other).settings[0].startswith("eps: 1e-08 in torch's Adam, 1e-07")
    assert (
        "['adam'].eps: "
        in difference({"net": net, "adam": one}, {"net": net, "adam": other}).text
    )
    xdevice.assert_parity(one, torch.optim.Adam(net.parameters()))
    twin = trained("torch").eval()
    twin.load_state_dict(net.state_dict())
    assert xdevice.parity.compare(net, twin).settings == (
        "mode is training in actual, evaluation in expected",
    )
    if "tensorflow" in WITH_MODELS:
        keras = trained("tensorflow")
        (line,) = difference(net, keras).settings
        assert (
            line
            == "not compared: training or evaluation mode, which a model of tensorflow does not state"
        )
