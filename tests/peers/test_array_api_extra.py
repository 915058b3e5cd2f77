"""array-api-extra on the namespaces of all backends: each function as on NumPy, but for those named here.

`expand_dims` is left out: it is deprecated.
"""

from __future__ import annotations

import math

import array_api_extra as xpx
import numpy as np
import pytest
from support import with_64_bit

import xdevice

CALLS = {
    "angle": lambda xp, x, i: xpx.angle(xp.multiply(x, 1j), xp=xp),
    "apply_where": lambda xp, x, i: xpx.apply_where(xp.greater(x, 2.0), (x,), lambda a: a * 2, lambda a: a - 1, xp=xp),
    "argpartition": lambda xp, x, i: xp.take(xpx.argpartition(x, 1, xp=xp), xp.asarray([1])),
    "at": lambda xp, x, i: xpx.at(x, slice(0, 2)).set(5.0, xp=xp),
    "atleast_nd": lambda xp, x, i: xpx.atleast_nd(x, ndim=3, xp=xp),
    "cov": lambda xp, x, i: xpx.cov(xp.stack([x, xp.square(x)]), xp=xp),
    "create_diagonal": lambda xp, x, i: xpx.create_diagonal(x, offset=1, xp=xp),
    "default_dtype": lambda xp, x, i: xp.zeros(2, dtype=xpx.default_dtype(xp)),
    "deg2rad": lambda xp, x, i: xpx.deg2rad(x, xp=xp),
    "diag_indices": lambda xp, x, i: xpx.diag_indices(3, xp=xp)[1],
    "isclose": lambda xp, x, i: xpx.isclose(x, xp.add(x, 1e-9), xp=xp),
    "isin": lambda xp, x, i: xpx.isin(i, xp.asarray([2, 5]), xp=xp),
    "kron": lambda xp, x, i: xpx.kron(xp.expand_dims(x, 0), xp.expand_dims(x, 1), xp=xp),
    "lazy_apply": lambda xp, x, i: xpx.lazy_apply(lambda a: a * 2, x, as_numpy=True, xp=xp),
    "nan_to_num": lambda xp, x, i: xpx.nan_to_num(xp.divide(x, x - 1), xp=xp),
    "nanmax": lambda xp, x, i: xpx.nanmax(xp.where(xp.greater(x, 2.0), math.nan, x), xp=xp),
    "nanmean": lambda xp, x, i: xpx.nanmean(xp.where(xp.greater(x, 2.0), math.nan, x), xp=xp),
    "nanmin": lambda xp, x, i: xpx.nanmin(xp.where(xp.greater(x, 2.0), math.nan, x), xp=xp),
    "nansum": lambda xp, x, i: xpx.nansum(xp.where(xp.greater(x, 2.0), math.nan, x), xp=xp),
    "nunique": lambda xp, x, i: xpx.nunique(i, xp=xp),
    "one_hot": lambda xp, x, i: xpx.one_hot(i, 4, xp=xp),
    "pad": lambda xp, x, i: xpx.pad(x, 1, xp=xp),
    "partition": lambda xp, x, i: xp.take(xpx.partition(x, 1, xp=xp), xp.asarray([1])),
    "rad2deg": lambda xp, x, i: xpx.rad2deg(x, xp=xp),
    "searchsorted": lambda xp, x, i: xpx.searchsorted(xp.sort(x), x, xp=xp),
    "setdiff1d": lambda xp, x, i: xpx.setdiff1d(i, xp.asarray([2]), xp=xp),
    "sinc": lambda xp, x, i: xpx.sinc(x, xp=xp),
    "tril_indices": lambda xp, x, i: xpx.tril_indices(3, xp=xp)[0],
    "triu_indices": lambda xp, x, i: xpx.triu_indices(3, xp=xp)[0],
    "union1d": lambda xp, x, i: xpx.union1d(i, xp.asarray([2, 7]), xp=xp),
    "unravel_index": lambda xp, x, i: xpx.unravel_index(i, (2, 3), xp=xp)[1],
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


def computed(function):
    xp = xdevice.array_namespace()
    made = CALLS[function](xp, xp.asarray([3.0, 1.0, 2.0]), xp.asarray([1, 2, 2]))
    return xdevice.to_numpy(made)


@pytest.mark.parametrize("function", CALLS)
@pytest.mark.parametrize("backend", xdevice.backends())
def test_a_function_gives_what_it_gives_on_numpy(backend, function):
    with xdevice.use("numpy"), np.errstate(all="ignore"):
        wanted = computed(function)
    with xdevice.use(backend), with_64_bit(backend):
        if function in OTHERS.get(backend, {}):
            with pytest.raises((TypeError, ValueError, AttributeError, AssertionError)):
                np.testing.assert_allclose(computed(function), wanted, rtol=1e-5)
            return
        np.testing.assert_allclose(computed(function), wanted, rtol=1e-5)
