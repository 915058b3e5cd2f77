"""What was compiled before a move computes with what is there after it, or the move is refused."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import xdevice

pytestmark = pytest.mark.skipif(
    "tensorflow" not in xdevice.backends(), reason="TensorFlow is not installed"
)


@pytest.fixture
def place():
    xdevice.set_backend("tensorflow")
    return xdevice.backend().samples().other_device() or pytest.skip(
        "TensorFlow has one device here"
    )


@pytest.fixture
def tf(place):
    return xdevice.backend().framework


def numbers(x):
    return np.asarray(x).tolist()


def variable(tf, values):
    with xdevice.cpu():
        return tf.Variable(values)


def test_a_function_traced_before_a_move_reads_and_writes_the_moved_variable(tf, place):
    v, w, x = variable(tf, [1.0, 2.0, 3.0]), variable(tf, 2.0), tf.ones(3)
    inner = tf.function(lambda x: tf.reduce_sum(v * x))
    outer = tf.function(lambda x: tf.cond(x[0] > 0, lambda: inner(x) * w, lambda: w + 0))
    concrete = inner.get_concrete_function(tf.TensorSpec([3]))
    write = tf.function(lambda: v.assign_add(tf.ones(3)))

    def seen():
        write()
        with tf.GradientTape() as tape:
            y = outer(x)
        slope, factor = tape.gradient(y, [v, w])
        return [
            float(y),
            float(inner(x)),
            float(concrete(x)),
            numbers(slope),
            float(factor),
            numbers(v),
        ]

    assert seen() == [18.0, 9.0, 9.0, [2.0] * 3, 9.0, [2.0, 3.0, 4.0]]
    xdevice.to_device([v, w], place)
    assert seen() == [24.0, 12.0, 12.0, [2.0] * 3, 12.0, [3.0, 4.0, 5.0]]
    v.assign([10.0, 10.0, 10.0])
    xdevice.to_device([v, w], "cpu")
    assert seen() == [66.0, 33.0, 33.0, [2.0] * 3, 33.0, [11.0] * 3]
    assert inner.experimental_get_tracing_count() == 1


def test_a_training_step_traced_before_a_move_trains_on(tf, place):
    import keras

    def losses(move):
        v = variable(tf, [3.0, 4.0])
        optimizer = keras.optimizers.Adam(0.1)
        with xdevice.cpu():
            optimizer.build([v])

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(v * v)
            optimizer.apply_gradients([(tape.gradient(loss, v), v)])
            return loss

        found = [float(step())]
        if move:
            xdevice.to_device([v, optimizer], place)
        return [*found, float(step()), float(step())]

    assert losses(move=True) == losses(move=False)


def test_keras_trains_on_after_a_move_in_functions_compiled_before(tf, place):
    import keras

    def losses(move):
        keras.utils.set_random_seed(0)
        with xdevice.cpu():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(optimizer=keras.optimizers.Adam(0.1), loss="mse")
            x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
            call = tf.function(model)
            found = [model.train_on_batch(x, y), float(tf.reduce_sum(call(tf.ones((1, 4)))))]
        if move:
            xdevice.to_device(model, place)
            assert xdevice.device_of(model) is place
        found += [model.train_on_batch(x, y), model.fit(x, y, verbose=0).history["loss"][0]]
        return [
            *found,
            float(tf.reduce_sum(call(tf.ones((1, 4))))),
            float(model.evaluate(x, y, verbose=0)),
        ]

    assert losses(move=True) == pytest.approx(losses(move=False), rel=1e-5)


def test_a_module_is_saved_and_read_after_a_move(tf, place, tmp_path):
    class Module(tf.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.table = tf.Variable([1.0, 2.0]), tf.range(300.0)

        @tf.function(input_signature=[tf.TensorSpec([2])])
        def __call__(self, x):
            return tf.reduce_sum(self.weight * x) + self.table[2]

    with xdevice.cpu():
        module = Module()
    assert float(module(tf.ones(2))) == 5.0
    xdevice.to_device(module, place)
    assert float(module(tf.ones(2))) == 5.0
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    xdevice.to_device(loaded.weight, place)
    loaded.weight.assign([10.0, 10.0])
    assert float(loaded(tf.ones(2))) == 22.0


def test_a_variable_that_a_pipeline_reads_is_not_moved(tf, place):
    v = variable(tf, 2.0)
    pipeline = iter(tf.data.Dataset.range(3).map(lambda i: v * tf.cast(i, "float32")).batch(2))
    assert numbers(next(pipeline)) == [0.0, 2.0]
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match=r"a tf\.data pipeline reads; move the variable before",
    ):
        xdevice.to_device(v, place)
    assert numbers(next(pipeline)) == [4.0]
    assert xdevice.device_of(v) is xdevice.cpu()
    del pipeline
    assert xdevice.device_of(xdevice.to_device(v, place)) is place


def test_only_a_variable_that_something_has_captured_is_searched_for(tf, place, monkeypatch):
    v = variable(tf, 2.0)
    monkeypatch.setattr(
        sys.modules["gc"], "get_objects", lambda: pytest.fail("nothing has captured it")
    )
    xdevice.to_device(v, place)
