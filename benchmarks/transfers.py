"""GB/s between the host and a GPU: xdevice's moves, the framework's own, and those of pinned memory, in one run.

    python benchmarks/transfers.py torch jax tensorflow paddle mxnet
    python benchmarks/transfers.py --json
    python benchmarks/transfers.py --prefetch torch jax

Medians of five after a warm-up, each waited for; a new source is read, and a new result is made, each time. "Pinned" is
a copy of, or to, page-locked memory that is there already, which no copy of ordinary memory can beat.

`--prefetch`: 16 NumPy batches of 64 MB, and some time of computing for each; the ratio is the whole time over the
larger of computing and the bus at 55 GB/s.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import click
import measured
import numpy as np
from pinned import pinned_copies

import xdevice

KB = 1 << 10
SIZES = [64 * KB << 2 * step for step in range(8)]  # to 1 GB
BUS = 55e9


class Row(NamedTuple):
    backend: str
    way: str
    nbytes: int
    ours: Any
    own: Any
    pinned: Any


def rates(
    nbytes: int, fresh: Callable[[], Any], *runs: Callable[[Any], Any] | None
) -> list[float | None]:
    """GB/s of each run, which take turns."""
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(6):
        for run, times in zip(runs, taken, strict=True):
            if run is None:
                continue
            source = fresh()
            xdevice.sync()
            start = time.perf_counter()
            result = run(source)
            wait(result)
            times.append(time.perf_counter() - start)
            del result, source
    return [nbytes / statistics.median(times[1:]) / 1e9 if times else None for times in taken]


def wait(result: Any) -> None:
    if not isinstance(result, np.ndarray):
        xdevice.sync(result)


def to_gpu(array: Any) -> Any:
    return xdevice.tensor(array, device="gpu")


def ignoring(run: Callable[[], Any]) -> Callable[[Any], Any]:
    def waited_for(_: Any) -> Any:
        result = run()
        xdevice.sync()  # a tensor of PyTorch's on the host says nothing of a copy to it
        return result

    return waited_for


def own_calls(
    backend: Any,
) -> tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]:
    """The framework's own: of an array to a GPU, of a tensor to an array, of a tensor to a new one on the GPU: by a
    copy, because a build may have no kernels for that GPU."""
    gpu, framework = backend.to_native(xdevice.gpu()), backend.framework
    if backend.name == "torch":
        return (
            lambda a: framework.from_numpy(a).to(gpu),
            lambda x: x.cpu().numpy(),
            lambda x: x.clone(),
        )
    if backend.name == "jax":
        return (
            lambda a: framework.device_put(a, gpu),
            np.asarray,
            lambda x: framework.numpy.copy(x),
        )
    if backend.name == "tensorflow":

        def constant(a: Any) -> Any:
            with framework.device(gpu):
                return framework.constant(a)

        def again(x: Any) -> Any:
            with framework.device(gpu):
                return framework.raw_ops.DeepCopy(x=x)

        return constant, lambda x: x.numpy(), again
    if backend.name == "paddle":
        return (
            lambda a: framework.to_tensor(a, place=gpu),
            lambda x: x.numpy(),
            lambda x: x._copy_to(gpu, True),
        )
    if backend.name == "mxnet":
        return (
            lambda a: framework.np.array(a, dtype=a.dtype, ctx=gpu),
            lambda x: x.asnumpy(),
            lambda x: x.copyto(gpu),
        )
    raise click.UsageError(f"the own calls of {backend.name} are not known here")


def rows(name: str, sizes: list[int]) -> list[Row]:
    found = []
    with xdevice.use_backend(name) as backend:
        up, down, again = own_calls(backend)
        for nbytes in sizes:
            array = np.random.default_rng(0).random(nbytes // 4, dtype=np.float32)
            x = xdevice.tensor(array, device="gpu")
            xdevice.sync(x)
            pinned_up, pinned_down = pinned_copies(name, backend.framework, x) or (None, None)

            def fresh(x: Any = x) -> Any:
                made = again(x)  # JAX and TensorFlow keep what they have read
                xdevice.sync(made)
                return made

            def given(array: Any = array) -> Any:
                return array

            down_rates = rates(
                nbytes, fresh, xdevice.to_numpy, down, pinned_down and ignoring(pinned_down)
            )
            up_rates = rates(nbytes, given, to_gpu, up, pinned_up and ignoring(pinned_up))
            found.append(Row(name, "to the host", nbytes, *down_rates))
            found.append(Row(name, "to the GPU", nbytes, *up_rates))
            xdevice.accelerator.empty_host_cache()
    return found


def by_size(found: list[Row]) -> tuple[list[str], list[list[str]]]:
    """The columns and the rows of a table with a column for each size."""
    sizes = sorted({row.nbytes for row in found})
    written = [f"{size // KB} KB" if size < KB**2 else f"{size // KB**2} MB" for size in sizes]
    table = []
    for backend, way in dict.fromkeys((row.backend, row.way) for row in found):
        of = [next(row for row in found if row[:3] == (backend, way, size)) for size in sizes]
        table.append(
            [f"{measured.TITLES[backend]} {way}, ours", *(f"{row.ours:.3g}" for row in of)]
        )
        table.append(["own", *(f"{row.own:.3g}" for row in of)])
        table.append(["ratio", *(f"{row.ours / row.own:.3g}" for row in of)])
        if of[0].pinned is not None:
            table.append(["pinned", *(f"{row.pinned:.3g}" for row in of)])
    return ["", *written], table


def products(x: Any, seconds: float, each: float) -> Any:
    y = x
    for _ in range(round(seconds / each)):
        y = x @ y
    return y


def prefetched(name: str, seconds: list[float]) -> list[tuple[str, float, float, float]]:
    found = []
    with xdevice.use_backend(name):
        batches = [
            np.random.default_rng(i).random((4096, 4096), dtype=np.float32) for i in range(16)
        ]
        weight = xdevice.random.uniform(2048, 2048, device="gpu")
        xdevice.sync(products(weight, 1, 0.1))
        each = xdevice.measure(lambda: products(weight, 1, 0.01)).median / 100
        for wanted in seconds:
            share = wanted / len(batches)

            def computed(share: float = share) -> Any:
                return [products(weight, share, each) for _ in batches]

            def all_of_it(share: float = share) -> Any:
                # each batch is used, in little time
                return [
                    (x[0, 0], products(weight, share, each))
                    for x in xdevice.prefetch(batches, "gpu")
                ]

            def alone() -> None:
                for _ in xdevice.prefetch(batches, "gpu"):
                    pass

            computing, whole, copying = (clock(run) for run in (computed, all_of_it, alone))
            found.append(
                (
                    name,
                    computing,
                    whole / max(computing, sum(b.nbytes for b in batches) / BUS),
                    copying,
                )
            )
    return found


def clock(run: Callable[[], Any]) -> float:
    taken = []
    for _ in range(5):
        xdevice.sync()
        start = time.perf_counter()
        result = run()
        xdevice.sync()
        taken.append(time.perf_counter() - start)
        del result
    return statistics.median(taken[1:])


@click.command()
@click.argument("backends", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
@click.option("--write", metavar="NAME", help="Write a table to benchmarks/results, too.")
@click.option(
    "--prefetch", "with_prefetch", is_flag=True, help="Prefetch instead of single moves."
)
def main(
    backends: tuple[str, ...], as_json: bool, write: str | None, with_prefetch: bool
) -> None:
    """GB/s between the host and a GPU, side by side."""
    names = backends or ("torch", "jax")
    if with_prefetch:
        for name in names:
            for found in prefetched(name, [0.02, 0.046, 0.086, 0.13, 0.17, 0.25, 0.34]):
                print(
                    "{}: computing {:.3f} s: {:.2f}  (nothing computed: {:.3f} s)".format(
                        *found
                    ),
                    flush=True,
                )
        return
    found = [row for name in names for row in rows(name, SIZES)]
    if write:
        measured.write(write, *by_size(found), names)
    if as_json:
        print(json.dumps([row._asdict() for row in found]))
        return
    print(f"{'':24} {'bytes':>12} {'ours':>8} {'own':>8} {'ratio':>8} {'pinned':>8}")
    for row in sorted(found, key=lambda row: (row.backend, row.way)):
        pinned = "" if row.pinned is None else f"{row.pinned:8.1f}"
        what = f"{row.backend}, {row.way}"
        print(
            f"{what:24} {row.nbytes:12} {row.ours:8.2f} {row.own:8.2f} {row.ours / row.own:8.2f} {pinned}"
        )


if __name__ == "__main__":
    main()
