"""Models of Keras, Gluon and Paddle with their metrics, after training: they are found, they move, training goes on."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import xdevice

pytestmark = [
    # MXNet, of SciPy
    pytest.mark.filterwarnings("ignore:Please import `csr_matrix`:DeprecationWarning"),
    # Paddle, of each BatchNorm
    pytest.mark.filterwarnings("ignore:When training, we now always track:UserWarning"),
]

X = np.arange(24, dtype="float32").reshape(8, 3) / 10
Y = (X.sum(1, keepdims=True) > 3).astype("float32")


# Keras


@pytest.fixture(scope="module")
def keras():
    xdevice.backend("tensorflow")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import keras
    return keras


def fitted(keras, compiled=None):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.BatchNormalization()]
    )
    model.add(keras.layers.Dense(1, "sigmoid"))
    metrics = [
        keras.metrics.BinaryAccuracy(name="acc"),
        keras.metrics.AUC(num_thresholds=5, name="auc"),
        "mae",
    ]
    model.compile(
        keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=metrics, run_eagerly=True
    )
    model.fit(X, Y, epochs=1, batch_size=4, verbose=0, shuffle=False)
    return model


def variables(model):
    return [
        *model.variables,
        *model.optimizer.variables,
        *(v for metric in model.metrics for v in metric.variables),
    ]


def places(model):
    native = {
        xdevice.backend("tensorflow").to_native(place): place
        for place in map(xdevice.device, PLACES)
    }
    found = set()
    for variable in variables(model):
        name = variable.value.device.rpartition("/device:")[2]
        found.add(
            next(
                place
                for spelling, place in native.items()
                if spelling.lstrip("/") in (name, f"device:{name}")
            )
        )
    return found


PLACES = ("cpu:0", "gpu:0", "gpu:1")


def test_a_fitted_keras_model_is_where_its_metrics_are(keras):
    model = fitted(keras)
    assert len(model.metrics) >= 2
    assert xdevice.device_of(model) is xdevice.cpu()
    assert xdevice.check_same_device(net={"model": model}) is xdevice.cpu()


def test_a_fitted_keras_model_moves_with_its_metrics(keras, place):
    model = fitted(keras)
    assert xdevice.to_device(model, place) is model
    assert places(model) == {place}
    assert xdevice.device_of(model) is place
    assert xdevice.same_device(model, [xdevice.copy_to(model.layers[0].kernel, place)])


def test_training_of_keras_goes_on_after_a_move(keras, place):
    moved, expected = fitted(keras), fitted(keras)
    xdevice.to_device(moved, place)
    with xdevice.use_backend("tensorflow"), place:
        history = moved.fit(X, Y, epochs=2, batch_size=4, verbose=0, shuffle=False).history
    theirs = expected.fit(X, Y, epochs=2, batch_size=4, verbose=0, shuffle=False).history
    for name, values in theirs.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-4, err_msg=name)
    for one, other in zip(moved.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert xdevice.device_of(moved) is place


def test_a_model_that_trained_on_a_gpu_is_found_there(keras):
    """`fit` makes metrics, and they are where it ran or on the host: neither is an error."""
    model = fitted(keras)
    keras.utils.set_random_seed(0)
    fresh = keras.models.clone_model(model)
    xdevice.to_device(fresh, "gpu:1")
    fresh.compile("sgd", "mse", metrics=["mae"], run_eagerly=True)
    with xdevice.use_backend("tensorflow"), xdevice.gpu(1):
        fresh.fit(X, Y, epochs=1, verbose=0)
    assert xdevice.device_of(fresh) is xdevice.gpu(1)
    xdevice.to_device(fresh, "cpu")
    fresh.fit(X, Y, epochs=1, verbose=0)
    assert xdevice.device_of(fresh) is xdevice.cpu()


def test_a_keras_metric_by_itself(keras, place):
    metric = keras.metrics.MeanSquaredError()
    metric.update_state(Y, Y + 0.5)
    moved = xdevice.to_device(metric, place)
    assert moved is metric
    assert xdevice.device_of(metric) is place
    assert float(metric.result()) == 0.25
    with xdevice.use_backend("tensorflow"), place:
        metric.update_state(Y, Y + 0.5)
    assert float(metric.result()) == 0.25
    assert xdevice.device_of(metric) is place


# Gluon


@pytest.fixture(scope="module")
def mx():
    return xdevice.backend("mxnet").framework


def gluon_net(mx):
    mx.random.seed(0)
    net = mx.gluon.nn.HybridSequential()
    net.add(
        mx.gluon.nn.Dense(4, activation="relu", in_units=3),
        mx.gluon.nn.BatchNorm(in_channels=4),
    )
    net.add(mx.gluon.nn.Dense(1, in_units=4))
    net.initialize(mx.init.Constant(0.1), ctx=mx.cpu())
    return net


def gluon_step(mx, net, trainer, metric, place):
    x, y = (
        mx.nd.array(array, ctx=xdevice.backend("mxnet").to_native(place)) for array in (X, Y)
    )
    with mx.autograd.record():
        predicted = net(x)
        loss = mx.gluon.loss.L2Loss()(predicted, y)
    loss.backward()
    trainer.step(len(X))
    metric.update(y, predicted)
    return loss.asnumpy()


def test_training_of_gluon_with_metrics_goes_on_after_a_move(mx, place):
    losses = {}
    for where in (place, xdevice.cpu()):
        net, metric = (
            gluon_net(mx),
            mx.metric.CompositeEvalMetric([mx.metric.MSE(), mx.metric.MAE()]),
        )
        trainer = mx.gluon.Trainer(
            net.collect_params(), "adam", {"learning_rate": 0.01}, kvstore=None
        )
        gluon_step(mx, net, trainer, metric, xdevice.cpu())
        moved = xdevice.to_device({"net": net, "trainer": trainer, "metric": metric}, where)
        assert moved["net"] is net
        assert moved["metric"] is metric
        assert xdevice.device_of(net) is where
        assert xdevice.check_same_device(state=moved) is where
        natives = {parameter.data().context for parameter in net.collect_params().values()}
        assert natives == {xdevice.backend("mxnet").to_native(where)}
        loss = gluon_step(mx, net, trainer, metric, where)
        losses[where] = (loss, dict(zip(*metric.get(), strict=True)))
    np.testing.assert_allclose(losses[place][0], losses[xdevice.cpu()][0], rtol=1e-5)
    assert losses[place][1] == pytest.approx(losses[xdevice.cpu()][1])


def test_gluon_batches_are_fetched_and_split(mx, place):
    loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(X, Y), batch_size=4)
    for x, y in xdevice.prefetch(loader, place):
        assert xdevice.check_same_device(x, y) is place
        parts = xdevice.split_batch((x, y), ["gpu:0", "gpu:1"])
        assert [xdevice.device_of(part) for part in parts] == [xdevice.gpu(0), xdevice.gpu(1)]


# Paddle


@pytest.fixture(scope="module")
def paddle():
    return xdevice.backend("paddle").framework


def test_training_of_paddle_with_metrics_goes_on_after_a_move(paddle, place):
    found = {}
    for where in (place, xdevice.cpu()):
        paddle.seed(0)
        net = paddle.nn.Sequential(
            paddle.nn.Linear(3, 4), paddle.nn.BatchNorm1D(4), paddle.nn.Linear(4, 2)
        )
        for parameter in net.parameters():
            parameter.set_value(paddle.full_like(parameter, 0.1))
        optimizer = paddle.optimizer.Adam(0.01, parameters=net.parameters())
        metrics = [paddle.metric.Accuracy(), paddle.metric.Auc()]
        for step, here in enumerate((xdevice.cpu(), where)):
            if step:
                state = {"net": net, "optimizer": optimizer, "metrics": metrics}
                moved = xdevice.to_device(state, where)
                assert moved["net"] is net
                assert moved["metrics"] == metrics
                assert xdevice.check_same_device(state=moved) is where
            with xdevice.use_backend("paddle"):
                x, y = (
                    xdevice.tensor(X, device=here),
                    xdevice.tensor(Y.astype("int64"), device=here),
                )
            with xdevice.use_backend("paddle"), here:
                scores = net(x)
                loss = paddle.nn.functional.cross_entropy(scores, y)
                loss.backward()
                optimizer.step()
                optimizer.clear_grad()
                metrics[0].update(metrics[0].compute(scores, y))
                metrics[1].update(
                    preds=paddle.nn.functional.softmax(scores).numpy(), labels=y.numpy()
                )
        found[where] = [float(loss), *[metric.accumulate() for metric in metrics]]
    assert found[place] == pytest.approx(found[xdevice.cpu()], rel=1e-4)


def test_a_metric_that_holds_numbers_passes_through(paddle, place):
    metric = paddle.metric.Precision()
    metric.update(np.array([0.1, 0.9]), np.array([0, 1]))
    assert xdevice.to_device({"metric": metric}, place)["metric"] is metric
    assert metric.accumulate() == 1.0
