"""Keras models that train, on the device that they were moved to."""

from __future__ import annotations

import numpy as np
import pytest

import xdevice

pytestmark = pytest.mark.skipif(
    "tensorflow" not in xdevice.backends(), reason="TensorFlow is not installed"
)
X = np.random.default_rng(0).random((32, 4), dtype=np.float32)
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture
def place():
    xdevice.set_backend("tensorflow")
    other = xdevice.backend().samples().other_device()
    return other or pytest.skip("TensorFlow has one device here")


@pytest.fixture
def net(place):
    return compiled()


def compiled():
    import keras

    with xdevice.cpu():
        layers = [
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
        model = keras.Sequential([keras.Input((4,)), *layers])
    keras.utils.set_random_seed(0)
    for variable in model.trainable_variables:
        variable.assign(
            np.random.default_rng(variable.shape[0]).random(variable.shape, dtype=np.float32)
        )
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
    return model


def fit(model, epochs=1):
    return model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0).history


def places(model):
    owned = [*model.variables, *model.metrics_variables, *model.optimizer.variables]
    return {xdevice.device_of(variable) for variable in owned}


def test_a_model_is_where_its_weights_are_whatever_fit_makes_elsewhere(net, place):
    xdevice.to_device(net, place)
    fit(net)
    assert xdevice.device_of(net) is place
    assert xdevice.check_same_device(net) is place
    assert places(net) != {place}, (
        "fit makes its metrics on the default device, else there is nothing to test"
    )


@pytest.mark.slow
def test_what_fit_has_made_is_moved_with_the_model(net, place):
    xdevice.to_device(net, place)
    fit(net)
    assert xdevice.to_device(net, place) is net
    assert places(net) == {place}
    xdevice.to_device(net, "cpu")
    assert places(net) == {xdevice.cpu()}


@pytest.mark.slow
def test_training_goes_on_as_if_nothing_had_moved(net, place):
    still = compiled()
    for where in (place, place, "cpu", place):
        np.testing.assert_allclose(fit(net, 2)["mae"], fit(still, 2)["mae"], rtol=1e-5)
        xdevice.to_device(net, where)
        first, second = (net.evaluate(X, Y, verbose=0) for _ in range(2))
        assert first == second, "metrics begin anew"
        np.testing.assert_allclose(first, still.evaluate(X, Y, verbose=0), rtol=1e-5)
        np.testing.assert_allclose(
            net.predict(X, verbose=0), still.predict(X, verbose=0), rtol=1e-5
        )


def test_a_metric_of_a_models_own_goes_along_but_does_not_say_where_it_is(place):
    import keras

    class Tracked(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.tracker = keras.layers.Dense(1), keras.metrics.Mean()

        def call(self, x):
            return self.dense(x)

    with xdevice.cpu():
        model = Tracked()
        model(X)
    xdevice.to_device(model, place)
    assert xdevice.device_of(model.tracker) is place
    xdevice.to_device(model.tracker, "cpu")
    assert xdevice.device_of(model) is place
    assert xdevice.device_of(model.tracker) is xdevice.cpu()


@pytest.mark.parametrize("xla", [None, True])
def test_a_copy_inside_a_graph_has_storage_and_a_gradient(place, xla):
    tf, samples = xdevice.backend().framework, xdevice.backend().samples()
    x = xdevice.ones(100)
    copied, given = tf.function(lambda x: (xdevice.copy_to(x, "cpu"), x), jit_compile=xla)(x)
    assert samples.address(copied) not in (samples.address(given), samples.address(x))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.function(lambda x: xdevice.copy_to(x, "cpu") * 3, jit_compile=xla)(x)
    assert xdevice.to_numpy(tape.gradient(y, x)).tolist() == [3.0] * 100


def test_a_copy_of_a_string_inside_a_graph(place):
    tf = xdevice.backend().framework
    assert (
        tf.function(lambda x: xdevice.copy_to(x, "cpu"))(tf.constant("word")).numpy() == b"word"
    )


def scaled():
    import tensorflow as tf

    class Scaled(tf.Module):
        def __init__(self):
            super().__init__()
            self.scale = tf.constant([1.0, 2.0])
            self.weight = tf.Variable([3.0, 4.0])
            self.more = [self.scale, {"x": tf.constant([5.0])}]
            self.label = tf.constant("kept")

        @tf.function
        def __call__(self, x):
            return x * self.scale * self.weight + self.more[1]["x"]

    with xdevice.cpu():
        return Scaled()


def test_constants_go_along_with_their_module(place):
    module = scaled()
    expected = [8.0, 13.0]
    x = xdevice.convert(np.ones(2, "float32"), "tensorflow")
    assert module(x).numpy().tolist() == expected
    copied = xdevice.copy_to(module, place)
    assert xdevice.device_of(module.scale) is xdevice.cpu()
    assert xdevice.to_device([module, x], place)[0] is module
    for moved in (module, copied):
        assert xdevice.device_of([moved, moved.scale, moved.more]) is place
        assert moved.more[0] is moved.scale
        assert moved.label.numpy() == b"kept"
        assert moved(x).numpy().tolist() == expected
    assert xdevice.to_device(module, "cpu") is module
    assert xdevice.device_of([module, module.scale, module.more]) is xdevice.cpu()


@pytest.mark.parametrize("given", [{}, {"mean": 2.0, "variance": 3.0}])
def test_normalization_goes_with_its_mean(place, given):
    import keras

    rows = np.arange(6, dtype="float32").reshape(3, 2)
    with xdevice.cpu():
        layer = keras.layers.Normalization(**given)
        layer.build((None, 2)) if given else layer.adapt(rows)
    expected = np.asarray(layer(rows))
    assert xdevice.device_of(layer) is xdevice.cpu()
    copied = xdevice.copy_to(layer, place)
    assert xdevice.device_of([layer, layer.mean, layer.variance]) is xdevice.cpu()
    for moved in (copied, xdevice.to_device(layer, place)):
        assert xdevice.device_of([moved, moved.mean, moved.variance]) is place
        np.testing.assert_allclose(np.asarray(moved(rows)), expected)


def test_the_optimizer_of_a_copy_knows_the_variables_of_the_copy(place):
    import keras

    model = compiled()
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.5)
    optimizer.build(model.trainable_variables)
    optimizer.exclude_from_weight_decay(var_list=model.trainable_variables[:1])
    model.compile(optimizer=optimizer, loss="mse")
    twin = xdevice.copy_to(model, place)
    for one in (model, twin):
        fit(one)
    for before, after in zip(model.trainable_variables, twin.trainable_variables, strict=True):
        assert np.allclose(before, after, atol=1e-6)


def test_a_copied_closure_may_have_an_empty_cell():
    import keras
    import tensorflow as tf

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            dense = self.dense = keras.layers.Dense(2)

            def head(x):
                return dense(x) if x is not None else later

            self.head = head
            if self.built:
                later = 1.0

        def call(self, x):
            return self.head(x)

    net = Net()
    x = tf.ones((1, 3))
    y = net(x)
    copied = xdevice.copy_to(net, "cpu")
    net.dense.kernel.assign(tf.zeros((3, 2)))
    assert (copied(x).numpy() == y.numpy()).all()
    with pytest.raises(NameError, match="later"):
        copied.head(None)
