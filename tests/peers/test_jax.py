"""JAX: what is registered with `jax.tree_util` is a container there, so it is one here: own classes, sparse arrays,
flax and optax states. `jax.device_put` is what users would write instead, and is held beside `to_device`.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from peer_laws import Laws, Peer, host, place_of

import xdevice

jax = xdevice.backend("jax").framework

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import flax
    import jax.numpy as jnp
    import optax
    from flax import linen, nnx
    from flax.training.train_state import TrainState
    from jax.experimental import sparse


def on_host(make):
    """JAX takes the first device of all for new arrays, which is the host here."""

    def made():
        with jax.default_device(jax.devices("cpu")[0]):
            return make()

    return made


@jax.tree_util.register_pytree_node_class
class Own:
    """Its name is no child, and its constructor is not that of a dataclass."""

    def __init__(self, array, more, *, name):
        self.array, self.more, self.name = array, more, name

    def tree_flatten(self):
        return (self.array, self.more), self.name

    @classmethod
    def tree_unflatten(cls, name, children):
        return cls(*children, name=name)


class WithKeys:
    def __init__(self, array):
        self.array, self.name = array, "kept"


jax.tree_util.register_pytree_with_keys(
    WithKeys,
    lambda x: (((jax.tree_util.GetAttrKey("array"), x.array),), None),
    lambda _, children: WithKeys(*children),
)


@flax.struct.dataclass
class Params:
    w: Any
    name: str = flax.struct.field(pytree_node=False, default="static")


def leaves(tree):
    """By JAX's own walk."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path): x
        for path, x in paths
        if isinstance(x, jax.Array | np.ndarray)
    }


def structure(tree):
    return jax.tree_util.tree_structure(tree)


class Net(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.BatchNorm(use_running_average=True)(linen.Dense(2)(x))


class NnxNet(nnx.Module):
    def __init__(self):
        self.layer = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
        self.norm = nnx.BatchNorm(2, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.norm(self.layer(x), use_running_average=True)


def variables():
    return Net().init(jax.random.key(0), jnp.ones((1, 3)))


def adam():
    return optax.adamw(0.1, mask={"w": True, "b": False}).init(
        {"w": jnp.ones(3), "b": jnp.zeros(2)}
    )


def chained():
    schedule = optax.cosine_decay_schedule(0.1, 10)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(schedule, momentum=0.9))
    return optimizer.init({"w": jnp.ones(3)})


def train_state():
    net = Net()
    return TrainState.create(
        apply_fn=net.apply, params=variables()["params"], tx=optax.adam(0.1)
    )


def tree(make, tensors=leaves, facts=structure, **more):
    return Peer(on_host(make), tensors, facts, backend="jax", **more)


class TestJax(Laws):
    peers = {
        "own class": tree(
            lambda: Own(jnp.arange(3.0), {"deep": jnp.ones((2, 2), "bfloat16")}, name="mine"),
            facts=lambda x: (x.name, structure(x)),
        ),
        "own class with keys": tree(lambda: WithKeys(jnp.arange(3)), facts=lambda x: x.name),
        "Partial": tree(
            lambda: jax.tree_util.Partial(jnp.add, jnp.ones(2)),
            facts=lambda x: (x.func, len(x.args)),
        ),
        "BCOO": tree(
            lambda: sparse.BCOO.fromdense(jnp.eye(3) * 2.5),
            lambda x: {"data": x.data, "indices": x.indices},
            lambda x: (x.shape, x.nse, x.unique_indices, x.indices_sorted),
            reads=False,
            replicates=False,
        ),
        "BCSR": tree(
            lambda: sparse.BCSR.fromdense(jnp.eye(3)),
            lambda x: {"data": x.data, "indices": x.indices, "indptr": x.indptr},
            lambda x: (x.shape, x.nse),
            reads=False,
            replicates=False,
        ),
        "flax.struct": tree(
            lambda: Params(jnp.ones(3)), facts=lambda x: (x.name, structure(x))
        ),
        "linen variables": tree(variables),
        "FrozenDict": tree(
            lambda: flax.core.freeze({"params": {"w": jnp.ones(2)}}), facts=lambda x: list(x)
        ),
        "TrainState": tree(
            train_state, facts=lambda x: (x.step, x.tx is not None, list(x.params))
        ),
        "nnx.State": tree(
            lambda: nnx.state(NnxNet()), facts=lambda x: list(x), reads=False, replicates=False
        ),
        "optax adamw": tree(adam),
        "optax chain": tree(chained),
    }


@pytest.mark.parametrize(
    "make",
    [variables, adam, chained, lambda: Own(jnp.ones(2), jnp.zeros(1), name="a"), train_state],
)
def test_as_device_put_puts_it(make, place):
    theirs = jax.device_put(on_host(make)(), xdevice.backend("jax").to_native(place))
    ours = xdevice.to_device(on_host(make)(), place)
    if make is not train_state:  # whose optimizer is equal only to itself
        assert structure(ours) == structure(theirs)
    assert list(leaves(ours)) == list(leaves(theirs)) if make is not train_state else True
    assert all(place_of(x) is place for x in leaves(ours).values() if isinstance(x, jax.Array))


def test_a_flax_step_where_it_is(place):
    x = on_host(lambda: jnp.arange(6.0).reshape(2, 3))()
    expected = on_host(lambda: Net().apply(variables(), x))()
    moved, x = xdevice.to_device([on_host(variables)(), x], place)
    result = Net().apply(moved, x)
    assert place_of(result) is place
    np.testing.assert_allclose(host(result), host(expected), rtol=1e-5)


def test_a_train_state_goes_on_where_it_is(place):
    state, expected = xdevice.to_device(on_host(train_state)(), place), on_host(train_state)()
    gradients = jax.tree_util.tree_map(jnp.ones_like, state.params)
    state = state.apply_gradients(grads=gradients)
    expected = expected.apply_gradients(
        grads=on_host(lambda: jax.tree_util.tree_map(jnp.ones_like, expected.params))()
    )
    assert state.step == 1
    for path, x in leaves(state.params).items():
        assert place_of(x) is place
        np.testing.assert_allclose(host(x), host(leaves(expected.params)[path]), rtol=1e-5)


def test_an_nnx_module_by_its_state(place):
    """The way that flax documents: split, place the state, merge."""
    model = on_host(NnxNet)()
    graph, state = nnx.split(model)
    moved = nnx.merge(graph, xdevice.to_device(state, place))
    x = xdevice.to_device(on_host(lambda: jnp.arange(6.0).reshape(2, 3))(), place)
    assert place_of(moved(x)) is place
    assert place_of(model.layer.kernel[...]) is xdevice.cpu()
    np.testing.assert_allclose(
        host(moved(x)), host(model(on_host(lambda: jnp.arange(6.0).reshape(2, 3))())), rtol=1e-5
    )


def test_an_nnx_module_does_not_stay_behind_unnoticed():
    batch = {"model": on_host(NnxNet)(), "x": on_host(lambda: jnp.ones(3))()}
    moved = xdevice.to_device(batch, "gpu:1")
    if place_of(moved["model"].layer.kernel[...]) is xdevice.gpu(1):
        assert xdevice.check_same_device(batch=moved) is xdevice.gpu(1)
        return
    with pytest.raises(xdevice.errors.DeviceMismatchError, match="model"):
        xdevice.check_same_device(batch=moved)


class Listed(nnx.Module):
    def __init__(self):
        layers = [nnx.Linear(2, 2, rngs=nnx.Rngs(i)) for i in range(2)]
        self.layers = nnx.List(layers)
        self.named = nnx.Dict(first=nnx.List(layers[:1]))

    def __call__(self, x):
        for i in range(2):
            x = self.layers[i](x)
        return x + self.named["first"][0](x)


def test_the_lists_of_nnx_keep_their_layers(place):
    model = on_host(Listed)()
    x = xdevice.to_device(on_host(lambda: jnp.ones((1, 2)))(), place)
    copies = [
        xdevice.to_device(model, place),
        xdevice.copy_to({"m": model}, place)["m"],
        xdevice.parallel.replicate(model, [place])[0],
        xdevice.parallel.broadcast(model, [place])[0],
    ]
    expected = host(model(on_host(lambda: jnp.ones((1, 2)))()))
    for moved in copies:
        assert len(jax.tree.leaves(moved)) == len(jax.tree.leaves(model)) > 0
        np.testing.assert_allclose(host(moved(x)), expected, rtol=1e-5)
        assert len(moved.layers) == 2
        assert xdevice.device_of(moved) is place


class Tied(nnx.Module):
    def __init__(self):
        self.a = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        self.b = self.a
        self.c = nnx.data([self.a.kernel])


def test_what_an_nnx_module_shares_stays_one(place):
    tied = on_host(Tied)()
    for verb in (xdevice.to_device, xdevice.copy_to):
        moved, inner = verb([tied, tied.b], place)
        assert moved.a is moved.b is inner
        assert moved.a.kernel is moved.c[0]
        assert place_of(moved.a.kernel[...]) is place
        assert len(jax.tree.leaves(nnx.state(moved))) == len(jax.tree.leaves(nnx.state(tied)))
    assert tied.a is tied.b


def test_a_sparse_product_where_it_is(place):
    matrix = xdevice.to_device(
        on_host(lambda: sparse.BCOO.fromdense(jnp.eye(3) * 2.5))(), place
    )
    vector = xdevice.to_device(on_host(lambda: jnp.arange(3.0))(), place)
    assert host(matrix @ vector).tolist() == [0.0, 2.5, 5.0]
    assert place_of(matrix @ vector) is place


def test_random_keys_move(place):
    key = on_host(lambda: jax.random.key(3))()
    for moved in (
        xdevice.to_device({"key": key}, place)["key"],
        xdevice.copy_to([key], place)[0],
    ):
        assert place_of(moved) is place
        assert moved.dtype == key.dtype
        assert (
            host(jax.random.uniform(moved, (2,))).tolist()
            == host(jax.random.uniform(key, (2,))).tolist()
        )
