"""Each verb of a world with each dtype, beside NumPy: run by `xdevice launch` in test_own_engines.py. No tests."""

from __future__ import annotations

import sys
from contextlib import suppress

import numpy as np

import xdevice
from xdevice.base.dtypes import host_dtype

ENGINE, SIZE = sys.argv[1], int(sys.argv[2])
BACKEND = ENGINE.partition(":")[0]
FOLD = {"sum": np.add, "max": np.maximum, "min": np.minimum}
ATOL = {
    "float64": 1e-15,
    "complex128": 1e-15,
    "float32": 5e-7,
    "complex64": 5e-7,
    "float16": 2e-3,
    "bfloat16": 2e-2,
}
SPECIAL = [-0.0, np.nan, np.inf, 1e-40]

if BACKEND == "jax":
    import jax

    jax.config.update("jax_enable_x64", True)


def part(dtype, rank, shape):
    """What a rank puts in, between -1 and 1 if it is a float."""
    drawn = np.random.default_rng([rank, 7]).uniform(-1, 1, shape)
    if dtype == "bool":
        return drawn > 0
    if dtype.startswith("complex"):
        return (drawn + 1j * drawn[..., ::-1]).astype(dtype)
    if dtype in ATOL:
        return drawn.astype(host_dtype(dtype))
    # by way of a signed one: a negative float is not an unsigned int
    return (drawn * 50).astype("int64").astype(dtype)


def same(got, wanted, atol=None):
    got = xdevice.to_numpy(got)
    assert got.dtype == wanted.dtype, (got.dtype, wanted.dtype)
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    if atol is None:
        assert got.tobytes() == np.ascontiguousarray(wanted).tobytes(), (got, wanted)
    else:
        wide = "complex128" if np.iscomplexobj(got) else "float64"
        np.testing.assert_allclose(
            got.astype(wide), wanted.astype(wide), rtol=0, atol=atol * SIZE
        )


def sums(world, x, parts, dtype, op):
    fold, atol = FOLD[op], ATOL.get(dtype) if op == "sum" else None
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    wanted = parts[0].astype(wide)
    for one in parts[1:]:
        wanted = fold(wanted, one.astype(wide)).astype(wide)
    wanted = wanted.astype(host_dtype(dtype))
    total = world.all_reduce(xdevice.copy_to(x, world.device), op)
    same(total, wanted, atol)
    length = len(wanted) // SIZE
    same(
        world.reduce_scatter(x, op),
        wanted[world.rank * length : (world.rank + 1) * length],
        atol,
    )
    same(x, parts[world.rank])
    copies = world.all_gather(total)  # bit for bit the same on all
    same(copies, np.concatenate([xdevice.to_numpy(total)] * SIZE))


def moves(world, x, parts):
    rank, last = world.rank, SIZE - 1
    same(world.all_gather(x), np.concatenate(parts))
    same(x, parts[rank])
    for root in (0, last):
        same(world.broadcast(xdevice.copy_to(x, world.device), root), parts[root])
    if rank == 0:
        world.send(x, last)
        same(x, parts[0])
    elif rank == last:
        same(world.recv(xdevice.copy_to(x, world.device), 0), parts[0])


def nans(rank):
    """NaN at another place on each rank, between numbers of both signs."""
    values = np.arange(-2.0, SIZE)
    values[rank] = np.nan
    return values


with xdevice.use_backend(BACKEND), xdevice.distributed.processes(engine=ENGINE) as world:
    assert world.engine == ENGINE, world.engine
    backend = xdevice.backend()
    assert (world.device.kind == "gpu") is bool(backend.virtual), world.device
    for dtype in sorted(backend.dtypes):
        for shape in ((2 * SIZE, 3), (SIZE,), (0, 2)):
            parts = [part(dtype, rank, shape) for rank in range(SIZE)]
            x = xdevice.tensor(parts[world.rank], dtype=dtype, device=world.device)
            for op in FOLD:
                # the largest of complex numbers, and of uint64 on engines whose integers are signed
                with suppress(
                    xdevice.errors.DTypeError,
                    *[xdevice.errors.UnsupportedError] * (dtype == "uint64" and op != "sum"),
                ):
                    sums(world, x, parts, dtype, op)
            moves(world, x, parts)
        if dtype in ("float16", "bfloat16", "float32", "float64"):
            special = np.array(SPECIAL).astype(host_dtype(dtype))
            x = xdevice.tensor(
                special if world.is_first else np.zeros_like(special),
                dtype=dtype,
                device=world.device,
            )
            same(world.broadcast(x), special)
            for op in ("max", "min"):
                found = world.all_reduce(
                    xdevice.tensor(nans(world.rank), dtype=dtype, device=world.device), op
                )
                wanted = FOLD[op].reduce([nans(rank) for rank in range(SIZE)])
                np.testing.assert_array_equal(xdevice.to_numpy(found).astype("float64"), wanted)
    if BACKEND == "tensorflow":
        variable = backend.framework.Variable([1.0, 2.0])
        assert xdevice.device_of(variable) is world.device
        same(world.broadcast(variable), np.array([1, 2], "float32"))
    print("all right")
