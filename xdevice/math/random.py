"""Random numbers: a seed produces the same bits on every backend and device.

NumPy's Philox generator draws the numbers on the host, and they are then moved to the device.
`np.random.Generator(np.random.Philox(0))` produces the same numbers as `seed(0)`. How far a draw advances the
generator depends on the size and dtype of the draw, but not on the backend.

| code that draws | its generator |
|---|---|
| inside `with seed(0):`, in this thread and asyncio task | the block's generator |
| an asyncio task, or `asyncio.to_thread`, that begins in a block | the block's generator, in the event loop's order |
| a task of `parallel.run`, the source of `prefetch` | its own, derived from the caller's in the order of calls |
| a forked process | its own, derived from the parent's in the order of forks |
| all other code: `threading.Thread`, cells of a notebook | the process's generator, one draw at a time |

The numbers therefore do not depend on timing, unless several `threading.Thread`s draw from the same generator; to avoid
this, open a `with seed(n):` block in each of these threads. The generator of a process is seeded from the environment
variable XDEVICE_SEED, if it is set (`xdevice parity` sets it), and otherwise with entropy from the system. This also
applies to a spawned process, but not to a forked process.
"""

from __future__ import annotations

import random
import sys
from operator import index

from xdevice.base import floats, spellings
from xdevice.base.dtypes import FLOATS, dtype_name, host_dtype
from xdevice.core import blocks, generators, registry, selection
from xdevice.errors import ArgumentError, DTypeError, ShapeError, shown
from xdevice.tensors import creation, refusals

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Final, NoReturn

    import numpy as np

    from xdevice.base.devices import Device
    from xdevice.contract import Backend

__all__ = [
    "bernoulli",
    "choice",
    "get_state",
    "integers",
    "kaiming_normal",
    "kaiming_uniform",
    "normal",
    "permutation",
    "seed",
    "seed_all",
    "set_state",
    "uniform",
    "xavier_normal",
    "xavier_uniform",
]


def __dir__() -> list[str]:
    return __all__


# the dtypes of the numbers that `integers`, `permutation` and `choice` return
_INTEGERS: Final = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_LARGEST: Final = {
    "float16": 65504.0,
    "bfloat16": 2.0**128 - 2.0**120,
    "float32": 2.0**128 - 2.0**104,
    "float64": sys.float_info.max,
}
"""The largest finite number of each float dtype."""
_FARTHEST: Final = 16
"""An upper bound on the distance of a normally distributed number from the mean, in standard deviations. NumPy's
ziggurat algorithm never draws a number that is more than 13.8 standard deviations away."""
_FARTHEST_SUM: Final = 1e-3
"""The largest allowed difference between 1 and the sum of probabilities. It allows for probabilities in float16, each
of which has a relative error of up to 5e-4."""


def uniform(
    *shape: int | Sequence[int],
    low: float = 0.0,
    high: float = 1.0,
    device: object = None,
    dtype: object = None,
    **misspelled: NoReturn,
) -> Any:
    """Returns uniformly distributed numbers in [low, high): `uniform(2, 3)` or `uniform((2, 3))`. The dtype is float32
    unless `dtype` is given.

    No number equals `high`, not even after rounding to the dtype. The spacing of the numbers is 2**-24 of the
    range in float32, and 2**-53 in float64; 16-bit floats are rounded from float32. Costs about 10 us, plus 9 ns for
    each number and the copy to the device.

    Args:
        shape: non-negative ints; if there are none, the result is a 0-d tensor.
        low: the inclusive lower bound.
        high: the exclusive upper bound.
        device: any form that `xdevice.device` accepts; by default, that of the `with device:` block, or `cpu:0`.
        dtype: "float16", "bfloat16", "float32" or "float64", in any framework's form.

    Raises the following errors before drawing anything:
        ArgumentError: a bound is not a number or does not fit into the dtype, or `low` is not below `high`.
        ShapeError, DeviceNotFoundError: as with `xdevice.ones`.
        DTypeError: the dtype is not a float dtype, or the backend lacks it here (float64 on JAX without 64-bit types).
        UnsupportedError: a framework is tracing the calling function into a graph (see docs/reference/random.md).

    Example:
        >>> with xdevice.random.seed(0):
        ...     x = xdevice.random.uniform(2, 3, low=-1, high=1)
        >>> xdevice.to_numpy(x).astype("float64").round(4).tolist()
        [[-0.7288, -0.9719, 0.8755], [-0.4845, -0.2271, -0.0569]]
    """
    if misspelled:
        spellings.refuse("random.uniform", misspelled, "low=, high=, device=, dtype=")
    backend, target_device, name = _backend_device_dtype(
        "uniform", device, dtype, default="float32", kinds=FLOATS
    )
    sizes = _sizes(backend, shape, name)
    least, most = _as_float("low", low, name), _as_float("high", high, name)
    if not least < most:
        raise ArgumentError(
            f"uniform: low must be below high, but low={shown(low)} is not below high={shown(high)} in {name}"
        )
    drawn_dtype = _drawn_dtype(name)
    if most - least > _LARGEST[drawn_dtype]:
        raise ArgumentError(
            f"uniform: the range from low={shown(low)} to high={shown(high)} is too wide for {name}; use a wider dtype"
        )

    def draw(generator: Any) -> Any:
        x = generator.random(sizes, dtype=drawn_dtype)
        # NumPy's numbers are in [0, 1) already, but 16-bit floats still have to be rounded
        is_ready = (least, most) == (0, 1) and drawn_dtype == name
        return x if is_ready else _stretched(x, least, most, name)

    return _tensor_of_floats(backend, _draw(backend, draw), target_device, dtype)


def normal(
    *shape: int | Sequence[int],
    loc: float = 0.0,
    scale: float = 1.0,
    device: object = None,
    dtype: object = None,
    **misspelled: NoReturn,
) -> Any:
    """Returns normally distributed numbers with the mean `loc` and the standard deviation `scale`. The dtype is float32
    unless `dtype` is given.

    Standard normal numbers are drawn, multiplied by `scale`, and added to `loc`, all in the dtype of the result. 16-bit
    floats are computed in float32 and then rounded.

    Args:
        scale: at least 0. The other arguments are the same as for `uniform`.

    Raises the following errors before drawing anything:
        ArgumentError: `loc` or `scale` is not a number, `scale` is below 0, or the numbers would not fit into the
            dtype.
        ShapeError, DeviceNotFoundError, DTypeError, UnsupportedError: as with `uniform`.

    Costs about 10 us, plus 20 ns for each number and the copy to the device.

    Example:
        >>> with xdevice.random.seed(0):
        ...     weights = xdevice.random.normal(784, 256, scale=0.01)
        >>> bool(abs(xdevice.to_numpy(weights).mean()) < 1e-4)
        True
    """
    if misspelled:
        spellings.refuse("random.normal", misspelled, "loc=, scale=, device=, dtype=")
    backend, target_device, name = _backend_device_dtype(
        "normal", device, dtype, default="float32", kinds=FLOATS
    )
    sizes = _sizes(backend, shape, name)
    mean, deviation = _as_float("loc", loc, name), _as_float("scale", scale, name)
    if deviation < 0:
        raise ArgumentError(
            f"normal: scale, the standard deviation, must be at least 0, not {shown(scale)}"
        )
    # refused before drawing, because otherwise only a rare number would become infinite
    if abs(mean) + _FARTHEST * deviation > _LARGEST[name]:
        raise ArgumentError(
            f"normal numbers with loc={shown(loc)} and scale={shown(scale)} do not fit in {name}; use a wider dtype"
        )

    def draw(generator: Any) -> Any:
        x = generator.standard_normal(sizes, dtype=_drawn_dtype(name))
        if (mean, deviation) != (0, 1):
            # computed in place and in the dtype of the numbers, because NumPy's versions differ
            # in which other operations would widen the dtype
            x *= x.dtype.type(deviation)
            x += x.dtype.type(mean)
        return x.astype(host_dtype(name), copy=False)

    return _tensor_of_floats(backend, _draw(backend, draw), target_device, dtype)


def integers(
    *shape: int | Sequence[int],
    high: int,
    low: int | None = None,
    device: object = None,
    dtype: object = None,
    **misspelled: NoReturn,
) -> Any:
    """Returns integers in [low, high), all equally probable: `integers((5,), high=10)`. The dtype is int64 unless
    `dtype` is given.

    As with `xdevice.tensor`, JAX without 64-bit types replaces int64 by int32. The numbers are the same if the bounds
    fit into int32.

    Args:
        high: the exclusive upper bound.
        low: the inclusive lower bound; None means 0. Without `low`, a single int as the shape is rejected because it is
            ambiguous: NumPy would use it as the lower bound, and `xdevice.ones` would use it as the shape.
        dtype: any integer dtype; the numbers drawn depend on it. The other arguments are the same as for `uniform`.

    Raises the following errors before drawing anything:
        ArgumentError: the bounds are not ints, `low` is not below `high`, or the shape is a single int without `low`.
        DTypeError: the dtype is not an integer dtype, the backend does not support it, or the bounds do not fit into
            it.
        ShapeError, DeviceNotFoundError, UnsupportedError: as with `uniform`.

    Costs about 10 us, plus 9 ns for each number and the copy to the device.

    Example:
        >>> with xdevice.random.seed(0):
        ...     xdevice.to_numpy(xdevice.random.integers((5,), high=10)).tolist()
        [1, 0, 9, 2, 3]
    """
    if misspelled:
        spellings.refuse("random.integers", misspelled, "high=, low=, device=, dtype=")
    backend, target_device, name = _backend_device_dtype(
        "integers", device, dtype, default="int64", kinds=_INTEGERS
    )
    sizes = _sizes(backend, shape, name)
    # `integers(5, high=10)` is refused, because 5 may be intended as `low`; `integers((5,),
    # high=10)` is clear
    if low is None and len(shape) == 1 and isinstance(shape[0], int):
        raise ArgumentError(
            f"integers({shape[0]}, high={shown(high)}): the first argument is the shape; write integers(({shape[0]},), "
            f"high=...) for {shape[0]} numbers, or integers(low={shape[0]}, high=...) for one number that is at least "
            f"{shape[0]}"
        )
    least, end = _as_int("low", 0 if low is None else low), _as_int("high", high)
    if least >= end:
        raise ArgumentError(
            f"integers: low must be below high, but low={least} is not below high={end}"
        )
    _require_bounds_fit(backend, name, least, most=end - 1)
    drawn = _draw(
        backend, lambda generator: generator.integers(least, end, size=sizes, dtype=name)
    )
    return backend.from_numpy(drawn, target_device)


def permutation(
    n: int, device: object = None, dtype: object = None, **misspelled: NoReturn
) -> Any:
    """Returns a vector of the ints from 0 to n - 1 in random order. Indexing a tensor with this vector shuffles the
    tensor. The dtype is int64 unless `dtype` is given.

    Args:
        n: a non-negative int.
        dtype: any integer dtype that can represent n - 1; the order does not depend on it. The argument `device` is the
            same as for `uniform`.

    Raises the following errors before drawing anything:
        ArgumentError: `n` is not a non-negative int.
        DTypeError, DeviceNotFoundError, UnsupportedError: as with `integers`.

    Costs about 10 us, plus 40 ns for each number and the copy to the device.

    Example:
        >>> with xdevice.random.seed(0):
        ...     xdevice.to_numpy(xdevice.random.permutation(5)).tolist()
        [0, 3, 4, 2, 1]
    """
    if misspelled:
        spellings.refuse("random.permutation", misspelled, "n=, device=, dtype=")
    backend, target_device, name = _backend_device_dtype(
        "permutation", device, dtype, default="int64", kinds=_INTEGERS
    )
    length = _as_int("n", n)
    if length < 0:
        raise ArgumentError(f"permutation: n must be a non-negative int, not {n}")
    # the length may exceed a limit of the backend, and the numbers may exceed the limits of the
    # dtype
    _sizes(backend, (length,), name)
    _require_bounds_fit(backend, name, least=0, most=length - 1)
    # drawn as int64, so that the order does not depend on the dtype
    drawn = _draw(backend, lambda generator: generator.permutation(length))
    return backend.from_numpy(drawn.astype(name, copy=False), target_device)


def bernoulli(
    *shape: int | Sequence[int],
    p: float = 0.5,
    device: object = None,
    dtype: object = None,
    **misspelled: NoReturn,
) -> Any:
    """Returns a mask. Each element is True with probability `p`, and False otherwise. If `dtype` is not bool, the
    elements are ones and zeros.

    Args:
        p: the probability of True, from 0 (never) to 1 (always).
        dtype: any dtype that the backend supports; the numbers drawn do not depend on it. The other arguments are the
            same as for `uniform`.

    Raises the following errors before drawing anything:
        ArgumentError: `p` is not a number from 0 to 1.
        DTypeError, ShapeError, DeviceNotFoundError, UnsupportedError: as with `uniform`.

    Costs about 10 us, plus 8 ns for each number and the copy to the device.

    Example:
        >>> with xdevice.random.seed(0):
        ...     kept = xdevice.random.bernoulli(1000, p=0.8)
        >>> int(xdevice.to_numpy(kept).sum())
        787
    """
    if misspelled:
        spellings.refuse("random.bernoulli", misspelled, "p=, device=, dtype=")
    backend, target_device, name = _backend_device_dtype(
        "bernoulli", device, dtype, default="bool", kinds=None
    )
    # all arguments are checked before the draw, so that the generator is not advanced if there
    # is an error
    sizes = _sizes(backend, shape, name)
    probability = _as_float("p", p, "float64")
    if not 0 <= probability <= 1:
        raise ArgumentError(f"bernoulli: p must be a probability from 0 to 1, not {shown(p)}")
    # drawn and compared in float64, so that probabilities near 0 or 1 are not rounded
    drawn = _draw(backend, lambda generator: generator.random(sizes) < probability)
    return backend.from_numpy(drawn.astype(host_dtype(name), copy=False), target_device)


def choice(
    *shape: int | Sequence[int],
    p: Any,
    device: object = None,
    dtype: object = None,
    **misspelled: NoReturn,
) -> Any:
    """Returns random indices from 0 to n - 1, where index `i` has the probability `p[i]`:
    `choice(2, 3, p=[0.2, 0.8])`. The dtype is int64 unless `dtype` is given.

    Experimental: it may change in a minor version.

    Args:
        p: n probabilities, as a sequence, or as a tensor with one axis, which is read by the host. The sum of the
            probabilities may differ from 1 by up to 0.001; they are then scaled so that their sum is 1.
        dtype: any integer dtype that can represent n - 1; the numbers drawn do not depend on it. The other arguments
            are the same as for `uniform`.

    Raises the following errors before drawing anything:
        ArgumentError: `p` is empty, is not a vector of numbers, contains NaN or a number below 0, or its sum differs
            from 1 by more than 0.001.
        ShapeError, DTypeError, DeviceNotFoundError, UnsupportedError: as with `integers`.

    Costs about 30 us, plus 40 ns for each number and the copy to the device.

    Example:
        >>> with xdevice.random.seed(0):
        ...     xdevice.to_numpy(xdevice.random.choice(8, p=[0.1, 0.0, 0.9])).tolist()
        [0, 2, 2, 0, 2, 2, 2, 2]
    """
    if misspelled:
        spellings.refuse("random.choice", misspelled, "p=, device=, dtype=")
    backend, target_device, name = _backend_device_dtype(
        "choice", device, dtype, default="int64", kinds=_INTEGERS
    )
    sizes = _sizes(backend, shape, name)
    # [0, 1) is divided into one interval for each index i. The interval is as long as the
    # probability of i, and ends at `ends[i]`. A uniform number selects the index whose interval
    # contains the number
    ends = _probabilities(p).cumsum()
    _require_bounds_fit(backend, name, least=0, most=len(ends) - 1)
    drawn = _draw(backend, lambda generator: generator.random(sizes))
    # after the division, the last end is exactly 1, so every number is below it
    return backend.from_numpy(
        (ends / ends[-1]).searchsorted(drawn, side="right").astype(name, copy=False),
        target_device,
    )


def xavier_uniform(
    *shape: int | Sequence[int], device: object = None, dtype: object = None
) -> Any:
    """Returns initial weights with a uniform distribution between -a and a, where `a = sqrt(6 / (inputs + outputs))`
    (Glorot and Bengio, 2010).

    Experimental: it may change in a minor version.

    PyTorch's `nn.init.xavier_uniform_` and Keras's `GlorotUniform` have the same distribution.

    Args:
        shape: (inputs, outputs) for `xp.matmul(x, w)`, or (O, C, height, width) for `nn.conv2d`. In the second case,
            `inputs` is C * height * width, and `outputs` is O * height * width. The other arguments are the same as for
            `uniform`.

    Raises the following errors before drawing anything:
        ShapeError: the shape has neither two nor four axes. Other errors, and the cost, are the same as for `uniform`.

    Example:
        >>> with xdevice.random.seed(0):
        ...     weights = xdevice.random.xavier_uniform(4, 2)
        >>> bool(abs(xdevice.to_numpy(weights)).max() < 1)
        True
    """
    inputs, outputs = _fans(shape, "xavier_uniform")
    return _uniform_around_zero(shape, 6 / (inputs + outputs), device, dtype)


def xavier_normal(
    *shape: int | Sequence[int], device: object = None, dtype: object = None
) -> Any:
    """Returns initial weights with a normal distribution. The mean is 0, and the standard deviation is
    `sqrt(2 / (inputs + outputs))` (Glorot and Bengio, 2010).

    Experimental: it may change in a minor version.

    PyTorch's `nn.init.xavier_normal_` has the same distribution; Keras's `GlorotNormal` truncates it at two standard
    deviations. The arguments, the errors and the cost are the same as for `xavier_uniform`.
    """
    inputs, outputs = _fans(shape, "xavier_normal")
    return normal(*shape, scale=(2 / (inputs + outputs)) ** 0.5, device=device, dtype=dtype)


def kaiming_uniform(
    *shape: int | Sequence[int], device: object = None, dtype: object = None
) -> Any:
    """Returns initial weights for a layer that is followed by a relu. Their distribution is uniform between -a and a,
    where `a = sqrt(6 / inputs)` (He et al., 2015).

    Experimental: it may change in a minor version.

    Keras's `HeUniform` has the same distribution, as does PyTorch's
    `nn.init.kaiming_uniform_(w, nonlinearity="relu")` for a `w` of the shape (outputs, inputs). The arguments, the
    errors and the cost are the same as for `xavier_uniform`.
    """
    return _uniform_around_zero(shape, 6 / _fans(shape, "kaiming_uniform")[0], device, dtype)


def kaiming_normal(
    *shape: int | Sequence[int], device: object = None, dtype: object = None
) -> Any:
    """Returns initial weights for a layer that is followed by a relu. Their distribution is normal, with the mean 0
    and the standard deviation `sqrt(2 / inputs)` (He et al., 2015).

    Experimental: it may change in a minor version.

    PyTorch's `nn.init.kaiming_normal_(w, nonlinearity="relu")` has the same distribution if `w` has the shape
    (outputs, inputs). Keras's `HeNormal` truncates it at two standard deviations. The arguments, the errors and the
    cost are the same as for `xavier_uniform`.
    """
    return normal(
        *shape, scale=(2 / _fans(shape, "kaiming_normal")[0]) ** 0.5, device=device, dtype=dtype
    )


class seed:
    """Restarts the random numbers from a seed: `seed(0)` from here on, `with seed(0):` only in the block.

    `seed(0)` seeds the generator from which the calling code draws. This is the generator of the innermost block or
    task, or, outside any block or task, the generator of the process (docs/reference/random.md). A block,
    `with seed(0):`, has its own generator. The generator outside the block continues as if the block had drawn
    nothing, even after an exception. Blocks can be nested, remain in effect across an `await`, and can be entered
    again; each time, they restart from the seed. One limitation: if another thread draws numbers between the call
    `seed(0)` and the beginning of the block, these numbers also come from the seed. `seed_all` also seeds the
    frameworks' generators. Costs 2 us, plus 50 us at the first draw.

    Args:
        n: a non-negative int of any size.

    Raises:
        ArgumentError: `n` is not a non-negative int. In that case, no generator is seeded.
        ScopeError: the block is exited in another thread or asyncio task than the thread or task that entered it.
        SettingError: XDEVICE_SEED is not a non-negative int.


    Example:
        >>> xdevice.random.seed(0)
        seed(0)
        >>> x = xdevice.random.uniform(3)
        >>> with xdevice.random.seed(0):
        ...     xdevice.assert_parity(xdevice.random.uniform(3), x)
    """

    def __init__(self, n: int) -> None:
        self._n = _as_int("a seed", n)
        if self._n < 0:
            raise ArgumentError(f"a seed must be a non-negative int, not {n}")
        # the attribute `numbers` of this `NumberSource` is the generator from which the calling code
        # draws
        self._source = generators.current_source()
        # the generator is seeded immediately, for a call without `with`; `__enter__` restores
        # the previous generator
        self._before = self._source.numbers
        self._begun = self._source.numbers = generators.Numbers(self._n)

    def __enter__(self) -> None:
        # `__init__` has already put a new generator (`_begun`) into the source outside the block, because `seed(n)` may
        # be called without `with`. This is undone here, unless the source was seeded again in the meantime
        if self._source.numbers is self._begun:
            self._source.numbers = self._before
        generators.entered.set(
            (
                *generators.entered.get(),
                generators.NumberSource(generators.Numbers(self._n), self),
            )
        )

    def __exit__(self, *_: object) -> None:
        # raises ScopeError if this thread or task has not entered the block
        entered = generators.entered.get()
        i = blocks.index_in(entered, self, f"{self!r}")
        generators.entered.set(entered[:i] + entered[i + 1 :])

    def __repr__(self) -> str:
        return f"seed({self._n})"


def seed_all(n: int) -> None:
    """Seeds `xdevice.random` and all other generators: Python's `random`, NumPy's `np.random`,
    and the default generators of the selected framework and of all loaded frameworks, on every
    device.

    The frameworks draw different numbers for the same seed. Only the numbers of `xdevice.random` are the same on all
    backends.

    | backend | seeded by |
    |---|---|
    | torch | `torch.manual_seed` |
    | tensorflow | `keras.utils.set_random_seed`, which calls `tf.random.set_seed` |
    | paddle, mxnet | `paddle.seed`, `mx.random.seed` |
    | jax | nothing: its keys are seeded when they are created |

    Args:
        n: an int from 0 to 2**32 - 1, the range that NumPy's `np.random.seed` accepts.

    Raises:
        ArgumentError: `n` is not an int from 0 to 2**32 - 1. In that case, no generator is seeded.
        UnsupportedError: a third-party backend that cannot be seeded is loaded. Other generators may already be seeded
            when this error is raised.

    Example:
        >>> xdevice.random.seed_all(0)
    """
    number = _as_int("a seed", n)
    if not 0 <= number < 2**32:
        raise ArgumentError(
            f"a seed for all generators must be an int from 0 to 2**32 - 1, not {number}"
        )
    # a dict serves as an ordered set, which removes duplicates: the selected backend is usually
    # among the loaded backends
    for backend in dict.fromkeys((selection.current(), *registry.list_loaded())):
        backend.seed_generators(number)
    random.seed(number)
    # NumPy has been imported by now, because each backend imports it. This module does not
    # import NumPy, so that `import xdevice` stays fast
    sys.modules["numpy"].random.seed(number)
    seed(number)


def get_state() -> dict[str, Any]:
    """Returns the state of the generator from which the calling code draws, as a dict of Python's built-in types. The
    state determines the next numbers.

    The dict can be pickled, and `set_state` restores the state. `seed` seeds the same generator: the generator of the
    innermost block or task, or, outside any block or task, the generator of the process. The frameworks' own generators
    have separate states, which functions such as `torch.get_rng_state` return.

    Example:
        >>> state = xdevice.random.get_state()
        >>> x = xdevice.random.normal(3)
        >>> xdevice.random.set_state(state)
        >>> xdevice.assert_parity(xdevice.random.normal(3), x)
    """
    return generators.current_source().numbers.state()


def set_state(state: dict[str, Any]) -> None:
    """Restores a `state` that `get_state` returned, in this process or another one. The next draws then produce the
    same numbers as the draws that followed that call of `get_state`.

    Raises:
        ArgumentError: `state` is not the result of `get_state`. In that case, the generator's state does not change.

    Example:
        >>> xdevice.random.set_state({})
        Traceback (most recent call last):
        xdevice.errors.ArgumentError: set_state expects a state from get_state, not {}
    """
    try:
        numbers = generators.Numbers.of_state(state)
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"set_state expects a state from get_state, not {shown(state)}"
        ) from error
    generators.current_source().numbers = numbers


def _tensor_of_floats(
    backend: Backend, drawn: np.ndarray[Any, Any], target_device: Device, dtype: object
) -> Any:
    """Returns the drawn floats as a tensor on `target_device`. `dtype` is the argument of the public function. If
    `dtype` is None and the program runs in float64 (`xdevice parity --float64`), the numbers were drawn in float32.
    This function then casts the numbers to float64, so that they equal the numbers of a run in float32."""
    is_wider = dtype is None and floats.is_float64()
    # `jitter_if_requested` returns the numbers unchanged, except in a run that measures the effect of small
    # differences (`--calibrate`)
    return backend.from_numpy(
        drawn.astype("float64") if is_wider else floats.jitter_if_requested(drawn),
        target_device,
    )


def _draw(backend: Backend, draw: Callable[[Any], Any]) -> Any:
    """Calls `draw(generator)` outside the backend's compiler, and returns the result. The generator belongs to the
    innermost block or task of the calling code, or, outside any block or task, to the process."""
    return backend.eagerly(lambda: generators.current_source().numbers.draw(draw))


# checks of arguments


def _backend_device_dtype(
    what: str, device: object, dtype: object, default: str, kinds: tuple[str, ...] | None
) -> tuple[Backend, Device, str]:
    """Returns the selected backend, the device, and the name of the dtype for a draw. `what` is the name of the
    drawing function, and `device` and `dtype` are its arguments. If `dtype` is None, the dtype is `default`. Raises
    `DTypeError` for a dtype that is not in `kinds` (None allows all dtypes), or that the backend lacks. Raises
    `DeviceNotFoundError` if there is no such device, and `UnsupportedError` if the numbers would become constants of a
    traced function."""
    backend = selection.current()
    backend.refuse_if_frozen(f"random.{what}")
    target_device = creation.place_for(backend, device)
    name = default if dtype is None else dtype_name(dtype)
    if kinds is not None and name not in kinds:
        raise DTypeError(
            f"random.{what} cannot draw numbers of dtype {name}; expected one of {', '.join(kinds)}"
        )
    # `may_narrow`: JAX without 64-bit may replace int64 by int32, because the drawing functions
    # check that their bounds fit (`_require_bounds_fit`). A float64 that became a float32 would
    # silently lose digits, so it is refused
    refusals.require_dtype(
        backend,
        name,
        "the dtype",
        "use another dtype",
        place=target_device,
        may_narrow=name in _INTEGERS,
    )
    return backend, target_device, name


def _sizes(
    backend: Backend, shape: tuple[int | Sequence[int], ...], dtype: str
) -> tuple[int, ...]:
    """Returns the shape of a draw as a tuple. Raises `ShapeError` if `shape` is not a shape, or is a shape that the
    backend does not support."""
    sizes = creation.shape_of(shape, dtype)
    if len(sizes) > backend.most_axes or max(sizes, default=0) > backend.longest_axis:
        raise ShapeError(
            f"{backend.name} supports at most {backend.most_axes} axes of at most {backend.longest_axis:,} elements "
            f"each, not the shape {shown(sizes)}"
        )
    return sizes


def _fans(shape: tuple[int | Sequence[int], ...], what: str) -> tuple[int, int]:
    """Returns the "fan in" and the "fan out" of a layer with weights of the given shape: the number of inputs that each
    output depends on, and the number of outputs that depend on each input. Both are at least 1, because the caller
    divides by them. Raises `ShapeError` unless the shape has two or four axes. `what` is the caller's name in the
    error."""
    sizes = creation.shape_of(shape, "float32")
    if len(sizes) not in (2, 4):
        raise ShapeError(
            f"random.{what} expects the shape (inputs, outputs), or (O, C, height, width) for a kernel, not {sizes}"
        )
    # a kernel has its outputs (O) first
    inputs, outputs = sizes if len(sizes) == 2 else (sizes[1], sizes[0])
    # the number of elements of a filter's window
    window = 1 if len(sizes) == 2 else sizes[2] * sizes[3]
    return max(inputs * window, 1), max(outputs * window, 1)


def _uniform_around_zero(
    shape: tuple[int | Sequence[int], ...], square: float, device: object, dtype: object
) -> Any:
    """Returns a tensor of uniform numbers between -a and a, where a is the square root of `square`. The other
    arguments are the same as for `uniform`."""
    return uniform(*shape, low=-(square**0.5), high=square**0.5, device=device, dtype=dtype)


def _probabilities(p: Any) -> np.ndarray[Any, Any]:
    """Returns the argument `p` of `choice` as a NumPy vector of float64. Raises `ArgumentError` unless `p` is a
    non-empty vector of non-negative numbers, and their sum differs from 1 by at most `_FARTHEST_SUM`."""
    import numpy

    try:
        values = numpy.asarray(creation.to_numpy(p) if hasattr(p, "dtype") else p).astype(
            "float64"
        )
    except (TypeError, ValueError):
        raise ArgumentError(f"p must be a sequence of probabilities, not {shown(p)}") from None
    if values.ndim != 1 or not values.size:
        raise ArgumentError(
            f"p must be a vector with at least one probability, but its shape is {values.shape}"
        )
    # the comparison is written in such a way that NaN is refused too; `i` is the index of the
    # first wrong probability
    if not (values >= 0).all():
        i = int((values >= 0).argmin())
        raise ArgumentError(f"probabilities must be at least 0, but p[{i}] is {values[i]}")
    if not abs(values.sum() - 1) <= _FARTHEST_SUM:
        raise ArgumentError(
            f"the sum of p must be 1, but it is {values.sum():.6g}; pass p / sum(p) instead"
        )
    return values


def _as_int(what: str, value: Any) -> int:
    """Returns the argument `value` as an int. Raises `ArgumentError` if `value` is a bool or is not an integer.
    `what` is the argument name to show in the error message."""
    try:
        if not isinstance(value, bool):
            return index(value)
    except Exception:
        # each framework raises its own error for a tensor that is not a single int
        pass
    raise ArgumentError(
        f"{what} must be an int, not {shown(value)} of type {type(value).__qualname__}"
    )


def _as_float(what: str, value: Any, dtype: str) -> float:
    """Returns the argument `value` as a float, rounded to the dtype. Raises `ArgumentError` if `value` is not a
    number, or is too large for the dtype. `what` is the argument name to show in the error message."""
    try:
        # `float` would accept a string such as "1.5"
        if isinstance(value, str | bytes):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(
            f"{what} must be a number, not {shown(value)} of type {type(value).__qualname__}"
        ) from None
    # the comparison is written in such a way that NaN is refused
    if not abs(number) <= _LARGEST[dtype]:
        raise ArgumentError(f"{what} must be a number that fits in {dtype}, not {shown(value)}")
    return float(host_dtype(dtype).type(number))


def _require_bounds_fit(backend: Backend, dtype: str, least: int, most: int) -> None:
    """Raises `DTypeError` if the ints from `least` to `most` do not fit into the integer dtype. If the backend
    replaces the dtype by a narrower one, as JAX without 64-bit types does, the ints must fit into the narrower
    dtype."""
    import numpy

    refusal = backend.dtype_refusal(dtype)
    stand_in = dtype if refusal is None else dtype.replace("64", "32")
    limits = numpy.iinfo(stand_in)
    if least < limits.min or most > limits.max:
        why = f", which replaces {dtype} here; {refusal}" if refusal else "; use a wider dtype"
        raise DTypeError(f"integers from {least} to {most} do not fit in {stand_in}{why}")


def _drawn_dtype(dtype: str) -> str:
    """Returns the dtype in which NumPy draws the numbers for a result of the float dtype `dtype`. For 16-bit floats
    it is float32; the numbers are rounded later."""
    return dtype if dtype == "float64" else "float32"


def _stretched(
    x: np.ndarray[Any, Any], least: float, most: float, dtype: str
) -> np.ndarray[Any, Any]:
    """Returns the numbers `x`, which are in [0, 1), scaled to [least, most) and rounded to `dtype`. A number that
    would be rounded to `most` becomes the largest number below `most`. Overwrites `x`."""
    import numpy

    host = host_dtype(dtype)
    x *= x.dtype.type(most - least)
    x += x.dtype.type(least)
    cast = x.astype(host, copy=False)
    # the largest number of the dtype that is below `most`
    below = numpy.nextafter(numpy.asarray(most, host), numpy.asarray(least, host))
    return numpy.minimum(cast, below)
