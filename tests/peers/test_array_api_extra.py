"""array-api-extra on the namespaces of all backends, and on standard arrays: each function as on NumPy, but for those
named here."""

from __future__ import annotations

import math

import array_api_extra as xpx
import numpy as np
import pytest
from helpers.environment import with_64_bit

import xdevice

pytestmark = pytest.mark.filterwarnings("ignore:.xpx.* is deprecated:DeprecationWarning")

CALLS = {
    "angle": lambda xp, x, i, make: xpx.angle(xp.multiply(x, 1j), xp=xp),
    "apply_where": lambda xp, x, i, make: xpx.apply_where(
        xp.greater(x, 2.0), (x,), lambda a: a * 2, lambda a: a - 1, xp=xp
    ),
    "argpartition": lambda xp, x, i, make: xp.take(xpx.argpartition(x, 1, xp=xp), make([1])),
    "at": lambda xp, x, i, make: xpx.at(x, slice(0, 2)).set(5.0, xp=xp),
    "atleast_nd": lambda xp, x, i, make: xpx.atleast_nd(x, ndim=3, xp=xp),
    "broadcast_shapes": lambda xp, x, i, make: xp.broadcast_to(
        x, xpx.broadcast_shapes(x.shape, (2, 1))
    ),
    "cov": lambda xp, x, i, make: xpx.cov(xp.stack([x, xp.square(x)]), xp=xp),
    "create_diagonal": lambda xp, x, i, make: xpx.create_diagonal(x, offset=1, xp=xp),
    "default_dtype": lambda xp, x, i, make: xp.zeros_like(x, dtype=xpx.default_dtype(xp)),
    "deg2rad": lambda xp, x, i, make: xpx.deg2rad(x, xp=xp),
    "diag_indices": lambda xp, x, i, make: xpx.diag_indices(3, xp=xp)[1],
    "expand_dims": lambda xp, x, i, make: xpx.expand_dims(x, axis=(0, 1), xp=xp),
    "isclose": lambda xp, x, i, make: xpx.isclose(x, xp.add(x, 1e-9), xp=xp),
    "isin": lambda xp, x, i, make: xpx.isin(i, make([2, 5]), xp=xp),
    "kron": lambda xp, x, i, make: xpx.kron(
        xp.expand_dims(x, axis=0), xp.expand_dims(x, axis=1), xp=xp
    ),
    "lazy_apply": lambda xp, x, i, make: xpx.lazy_apply(
        lambda a: a * 2, x, as_numpy=True, xp=xp
    ),
    "nan_to_num": lambda xp, x, i, make: xpx.nan_to_num(xp.divide(x, x - 1), xp=xp),
    "nanmax": lambda xp, x, i, make: xpx.nanmax(
        xp.where(xp.greater(x, 2.0), math.nan, x), xp=xp
    ),
    "nanmean": lambda xp, x, i, make: xpx.nanmean(
        xp.where(xp.greater(x, 2.0), math.nan, x), xp=xp
    ),
    "nanmin": lambda xp, x, i, make: xpx.nanmin(
        xp.where(xp.greater(x, 2.0), math.nan, x), xp=xp
    ),
    "nansum": lambda xp, x, i, make: xpx.nansum(
        xp.where(xp.greater(x, 2.0), math.nan, x), xp=xp
    ),
    "nunique": lambda xp, x, i, make: xpx.nunique(i, xp=xp),
    "one_hot": lambda xp, x, i, make: xpx.one_hot(i, 4, xp=xp),
    "pad": lambda xp, x, i, make: xpx.pad(x, 1, xp=xp),
    "partition": lambda xp, x, i, make: xp.take(xpx.partition(x, 1, xp=xp), make([1])),
    "rad2deg": lambda xp, x, i, make: xpx.rad2deg(x, xp=xp),
    "searchsorted": lambda xp, x, i, make: xpx.searchsorted(xp.sort(x), x, xp=xp),
    "setdiff1d": lambda xp, x, i, make: xpx.setdiff1d(i, make([2]), xp=xp),
    "sinc": lambda xp, x, i, make: xpx.sinc(x, xp=xp),
    "tril_indices": lambda xp, x, i, make: xpx.tril_indices(3, xp=xp)[0],
    "triu_indices": lambda xp, x, i, make: xpx.triu_indices(3, xp=xp)[0],
    "union1d": lambda xp, x, i, make: xpx.union1d(i, make([2, 7]), xp=xp),
    "unravel_index": lambda xp, x, i, make: xpx.unravel_index(i, (2, 3), xp=xp)[1],
}

ASKS_THE_TENSOR = "it asks the tensor for its namespace or its device, although xp= says it"
OTHERS: dict[str, dict[str, str]] = {
    "jax": {"nunique": "for an array of JAX it calls unique_counts(size=), which is not of the standard"},
    "tensorflow": {
        "at": "it refuses what it cannot write into",
        "create_diagonal": ASKS_THE_TENSOR,
        "pad": ASKS_THE_TENSOR,
    },
    "paddle": {
        "at": "it refuses what it does not know",
        **dict.fromkeys(("apply_where", "create_diagonal", "isclose", "pad"), ASKS_THE_TENSOR),
    },
    "mxnet": {
        "angle": "there are no complex dtypes",
        "at": "it refuses what it does not know",
        "unravel_index": "it computes by //, which MXNet does not have",
        **dict.fromkeys(
            (
                "apply_where", "create_diagonal", "isclose", "isin", "lazy_apply", "nunique", "one_hot", "pad",
                "setdiff1d", "sinc",
            ),
            ASKS_THE_TENSOR,
        ),
    },
}  # fmt: skip
"""By backend: the functions that do not work, and why; nothing of it is the namespace's."""


WRAPPED = {
    "mxnet": {"angle": (xdevice.errors.DTypeError, "complex64")},
    "gpu:1": {"lazy_apply": (xdevice.errors.DTypeError, "NumPy cannot read an array on gpu:1")},
}
"""The same of standard arrays, by backend and device: `as_numpy=True` is no transfer, on PyTorch's GPUs neither."""


def computed(function, xp, make):
    return CALLS[function](xp, make([3.0, 1.0, 2.0]), make([1, 2, 2]), make)


def by_numpy(function):
    with xdevice.use_backend("numpy"), np.errstate(all="ignore"):
        return computed(function, xdevice.array_namespace(), xdevice.tensor)


def test_every_function_is_called():
    assert {*xpx.__all__} == {*CALLS, "__version__", "testing"}


@pytest.mark.parametrize("function", CALLS)
@pytest.mark.parametrize("backend", xdevice.backends())
def test_a_function_gives_what_it_gives_on_numpy(backend, function):
    def check():
        made = computed(function, xdevice.array_namespace(), xdevice.tensor)
        np.testing.assert_allclose(xdevice.to_numpy(made), wanted, rtol=1e-5)

    wanted = by_numpy(function)
    with xdevice.use_backend(backend), with_64_bit(backend):
        if function not in OTHERS.get(backend, {}):
            check()
            return
        with pytest.raises((TypeError, ValueError, AttributeError, AssertionError)):
            check()


@pytest.mark.parametrize("function", CALLS)
@pytest.mark.parametrize("here", ["cpu:0", "gpu:1"])
@pytest.mark.parametrize(
    "backend",
    [name for name in ("tensorflow", "paddle", "mxnet") if name in xdevice.backends()],
)
def test_a_function_gives_it_on_standard_arrays_where_they_are(backend, here, function):
    def make(values):
        return xdevice.math.standard_array(xdevice.tensor(values, device=here))

    wanted = by_numpy(function)
    with xdevice.use_backend(backend) as chosen:
        if here not in map(str, chosen.devices()):
            pytest.skip("XDEVICE_VIRTUAL_GPUS=2 gives them")
        xp = make([0]).__array_namespace__()
        error, said = (
            WRAPPED.get(backend, {}).get(function)
            or WRAPPED.get(here, {}).get(function)
            or (None, "")
        )
        if error is not None:
            with pytest.raises(error, match=said):
                computed(function, xp, make)
            return
        made = computed(function, xp, make)
        np.testing.assert_allclose(xdevice.to_numpy(made.tensor), wanted, rtol=1e-5)
        # those get no array
        assert str(made.device) == ("cpu:0" if function.endswith("indices") else here)
