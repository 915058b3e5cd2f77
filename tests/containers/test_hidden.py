"""Objects that hide what they hold: behind a property, in a proxy, in arrays of the host, or because the backend of
their tensors cannot be loaded. None passes as if it held nothing."""

from __future__ import annotations

import collections
import functools
import subprocess
import sys
import textwrap
import types

import numpy as np
import pytest
from helpers.environment import FRAMEWORKS
from helpers.tensors import ones

import xdevice


@pytest.fixture(params=FRAMEWORKS)
def backend(request):
    return xdevice.backend(request.param)


class Kept:
    """A decorator that keeps results, and shows what it decorates."""

    def __init__(self, x):
        self.kept = x

    @property
    def __wrapped__(self):
        return len


class KeptInSlot:
    __slots__ = ("kept",)

    def __init__(self, x):
        self.kept = {"last": x}

    __wrapped__ = property(lambda self: 3)


class Proxy:
    """Is of the class of what it stands for, and keeps something of its own."""

    def __init__(self, inner, x):
        self.inner, self.kept = inner, x

    __wrapped__ = property(lambda self: self.inner)
    __class__ = property(lambda self: type(self.inner))


def in_wrapt(x):
    wrapt = pytest.importorskip("wrapt")
    proxy = wrapt.ObjectProxy({"a": 3})
    proxy._self_kept = [x]
    return proxy


BEHIND_PROPERTIES = {
    "a property": Kept,
    "a property and a slot": KeptInSlot,
    "a proxy of a dict": lambda x: Proxy({}, x),
    "a proxy of a number": lambda x: Proxy(3, x),
    "a proxy in C": in_wrapt,
}


@pytest.mark.parametrize("make", BEHIND_PROPERTIES.values(), ids=BEHIND_PROPERTIES)
def test_what_a_property_hides_is_seen(backend, there, make):
    hidden = make(ones(backend))
    batch = {"it": hidden, "x": ones(backend)}
    for verb in (xdevice.to_device, xdevice.copy_to):
        with pytest.raises(
            xdevice.errors.ContainerError, match=r"\['it'\] is an? .* would stay behind"
        ):
            verb(batch, there)
    assert not xdevice.same_device(hidden, ones(backend, there))
    with pytest.raises(xdevice.errors.DeviceMismatchError):
        xdevice.check_same_device(hidden, ones(backend, there))
    empty = [make(3), ones(backend)]
    assert xdevice.to_device(empty, there)[0] is empty[0]


class Holder:
    def __init__(self, x):
        self.x = x


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = {"deep": [x]}


HOLDING_ARRAYS = {
    "an object": Holder,
    "slots": Slotted,
    "a bound method": lambda x: Holder(x).__init__,
    "a partial in an object": lambda x: Holder(functools.partial(max, x)),
    "a mapping proxy in an object": lambda x: Holder(types.MappingProxyType({"x": x})),
}


@pytest.mark.parametrize("make", HOLDING_ARRAYS.values(), ids=HOLDING_ARRAYS)
@pytest.mark.parametrize("name", ["numpy", *FRAMEWORKS])
def test_no_copy_shares_the_arrays_in_an_object(name, make):
    x = ones(xdevice.backend(name))
    it = make(np.ones(2))
    for batch in ([it, x], {"x": x, "deep": collections.OrderedDict(it=it)}):
        for verb in (
            lambda batch=batch: xdevice.copy_to(batch, "cpu"),
            lambda batch=batch: xdevice.to_numpy(batch),
            lambda batch=batch: xdevice.parallel.broadcast(batch, ["cpu"]),
            lambda batch=batch: xdevice.parallel.replicate(batch, ["cpu"]),
            lambda batch=batch: xdevice.convert(batch, "numpy", copy=True),
        ):
            with pytest.raises(
                xdevice.errors.ContainerError, match="contains arrays, which a copy would share"
            ):
                verb()
        assert xdevice.to_device(batch, "cpu") is batch
    free = [make(3), np.random.default_rng(0), Holder(np.random.RandomState(0)), x]
    assert xdevice.copy_to(free, "cpu")[0] is free[0]


def test_no_copy_of_an_array_of_objects_shares_them():
    inner = np.ones(2)
    for array in (
        np.array([inner, None], object),
        np.array([(1, inner)], [("n", int), ("x", object)]),
    ):
        for copied in (
            xdevice.copy_to(array, "cpu"),
            xdevice.copy_to([array], "cpu")[0],
            xdevice.to_numpy(array),
        ):
            value = copied[0] if array.dtype.names is None else copied[0]["x"]
            assert value is not inner
            assert value.tolist() == [1.0, 1.0]


def test_a_copy_does_not_share_the_memory_of_a_view():
    # a built-in type cannot be registered, so the advice must be another one
    with pytest.raises(
        xdevice.errors.ContainerError,
        match=r"\[0\] is of type memoryview and contains arrays, .*; put its contents",
    ):
        xdevice.copy_to([memoryview(np.ones(2)), np.ones(1)], "cpu")


def run(text, **variables):
    import os

    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("XDEVICE")
    }
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split("\n")[:-1]


@pytest.mark.skipif("jax" not in FRAMEWORKS, reason="JAX is not tested here")
def test_tensors_whose_backend_cannot_be_loaded_do_not_pass():
    lines = run(
        """
        import jax.numpy as jnp
        x = jnp.ones(2)
        import xdevice
        class Cache:
            def __init__(self, x): self.x = x
        class Slotted:
            __slots__ = ("x",)
            def __init__(self, x): self.x = [x]
        for it in (x, Cache(x), Slotted(x), Cache(Cache(x)), {x.shape: Cache(x)}):
            for verb in (lambda: xdevice.to_device({"it": it}, "cpu"), lambda: xdevice.same_device({"it": it}),
                         lambda: xdevice.copy_to([it], "cpu"), lambda: xdevice.device_of([it])):
                try:
                    print(verb())
                except xdevice.errors.UnsupportedError as error:
                    print("refused")
        """,
        XDEVICE_VIRTUAL_GPUS="2",
    )
    assert lines == ["refused"] * 20


FIRST_CALLS = {
    "jax": """
        import jax, jax.numpy as jnp
        def ones(): return jnp.ones(2)
        def known(cls):
            jax.tree_util.register_pytree_node(cls, lambda n: ((n.x,), None), lambda a, c: cls(c[0]))
        """,
    "torch": """
        import torch
        def ones(): return torch.ones(2)
        def known(cls):
            torch.utils._pytree.register_pytree_node(cls, lambda n: ([n.x], None), lambda c, a: cls(c[0]))
        """,
}


CALLS = (
    "copy_to({0}, 'cpu')",
    "to_device({0}, 'cpu')",
    "to_numpy({0})",
    "parallel.replicate({0}, ['cpu'])",
    "parallel.broadcast({0}, ['cpu'])",
)


@pytest.mark.parametrize("name", FIRST_CALLS)
@pytest.mark.parametrize("verb", CALLS)
def test_what_a_framework_has_registered_is_walked_in_the_first_call(name, verb):
    if name not in FRAMEWORKS:
        pytest.skip(f"{name} is not tested here")
    call = verb.format("{'a': [Node(ones())], 'b': [Node(ones())]}")
    lines = run(
        textwrap.dedent(FIRST_CALLS[name])
        + textwrap.dedent(
            f"""
            import xdevice
            class Node:
                def __init__(self, x): self.x = x
            known(Node)
            xdevice.{call}
            print("walked")
            """
        )
    )
    assert lines == ["walked"]
