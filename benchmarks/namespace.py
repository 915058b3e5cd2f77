"""What the namespace costs: a look-up, and every function against array-api-compat's, interleaved; where that has none,
on TensorFlow, Paddle and MXNet, `add`, `matmul` and `sum` against the framework's own.

python benchmarks/namespace.py [--side 1024] [--all] [backend ...]

Times are the processor's, of one thread, the least of many rounds, so that other work on the machine hardly counts.
Functions that take more than 1.1 times as long are measured again, twice, with as many rounds more each time, and the
least ratio counts: the same function called once on both sides reads up to 1.3 now and then. It prints those that stay
above 1.1, with `--all` all of them. Arrays are of 1,024 by 1,024
float32, those that are factorized of 128 by 128, and what is made of numbers or lists has 10,000.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import time
import timeit
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # before a framework reads them
# XLA takes as many threads as there are cores
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import xdevice  # noqa: E402  # the lines above come first

COMPAT = {
    "torch": "array_api_compat.torch",
    "jax": "jax.numpy",
    "numpy": "array_api_compat.numpy",
}
NATIVE = {
    "tensorflow": ("f.add(x, x)", "f.matmul(x, x)", "f.reduce_sum(x)"),
    "paddle": ("f.add(x, x)", "f.matmul(x, x)", "f.sum(x)"),
    "mxnet": ("f.np.add(x, x)", "f.np.matmul(x, x)", "f.np.sum(x)"),
}
OURS = ("xp.add(x, x)", "xp.matmul(x, x)", "xp.sum(x)")

UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "exp", "expm1", "floor",
    "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "negative", "positive", "reciprocal", "round",
    "sign", "signbit", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc", "real", "conj", "argmax", "argmin",
    "argsort", "sort", "count_nonzero", "max", "mean", "min", "prod", "std", "sum", "var", "all", "any",
    "matrix_transpose", "flip", "unstack", "tril", "triu", "nonzero", "unique_all", "unique_counts",
    "unique_inverse", "unique_values", "empty_like", "ones_like", "zeros_like", "broadcast_arrays", "diff", "fft.rfft",
    "fft.rfftn", "fft.ihfft", "fft.fftshift", "fft.ifftshift", "linalg.matrix_norm", "linalg.trace", "linalg.diagonal",
    "linalg.vector_norm",
)  # fmt: skip
LINALG = (
    "cholesky",
    "det",
    "eigh",
    "eigvalsh",
    "inv",
    "matrix_rank",
    "pinv",
    "qr",
    "slogdet",
    "svd",
    "svdvals",
)
BINARY = (
    "add", "atan2", "copysign", "divide", "equal", "floor_divide", "greater", "greater_equal", "hypot", "less",
    "less_equal", "logaddexp", "maximum", "minimum", "multiply", "nextafter", "not_equal", "pow", "remainder",
    "subtract", "matmul", "vecdot",
)  # fmt: skip
OTHERS = {
    **{f"linalg.{name}": f"{{}}.linalg.{name}(m)" for name in LINALG},
    "linalg.solve": "{}.linalg.solve(m, m)",
    **{name: f"({{}}.{name}(i, i))" for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{name: f"{{}}.{name}(i, one)" for name in ("bitwise_left_shift", "bitwise_right_shift")},
    **{name: f"{{}}.{name}(b, b)" for name in ("logical_and", "logical_or", "logical_xor")},
    **{
        name: f"{{}}.fft.{name}(z)"
        for name in ("fft", "ifft", "irfft", "hfft", "fftn", "ifftn", "irfftn")
    },
    "arange": "{}.arange(10000)",
    "asarray": "{}.asarray(numbers)",
    "astype": "{}.astype(x, {}.float64)",
    "bitwise_invert": "{}.bitwise_invert(i)",
    "broadcast_to": "{}.broadcast_to(v, shape)",
    "clip": "{}.clip(x, 0.2, 0.8)",
    "concat": "{}.concat([x, x])",
    "cross": "{}.linalg.cross(three, three)",
    "cumulative_prod": "{}.cumulative_prod(x, axis=1)",
    "cumulative_sum": "{}.cumulative_sum(x, axis=1)",
    "empty": "{}.empty(shape)",
    "expand_dims": "{}.expand_dims(x, axis=0)",
    "eye": "{}.eye(1024)",
    "full": "{}.full(shape, 2.0)",
    "full_like": "{}.full_like(x, 2.0)",
    "imag": "{}.imag(z)",
    "linspace": "{}.linspace(0, 1, 10000)",
    "logical_not": "{}.logical_not(b)",
    "matrix_power": "{}.linalg.matrix_power(m, 3)",
    "meshgrid": "{}.meshgrid(v, v)",
    "moveaxis": "{}.moveaxis(x, 0, 1)",
    "ones": "{}.ones(shape)",
    "outer": "{}.linalg.outer(v, v)",
    "permute_dims": "{}.permute_dims(x, (1, 0))",
    "repeat": "{}.repeat(x, 2)",
    "reshape": "{}.reshape(x, (-1,))",
    "roll": "{}.roll(x, 3)",
    "searchsorted": "{}.searchsorted(v, x)",
    "squeeze": "{}.squeeze(x[None], axis=0)",
    "stack": "{}.stack([x, x])",
    "take": "{}.take(x, places, axis=0)",
    "take_along_axis": "{}.take_along_axis(x, order, axis=1)",
    "tensordot": "{}.tensordot(x, x, axes=1)",
    "tile": "{}.tile(x, (2, 1))",
    "where": "{}.where(b, x, x)",
    "zeros": "{}.zeros(shape)",
}


def calls() -> dict[str, str]:
    """By function: its call, with a field for the namespace."""
    found = (
        {name: f"{{}}.{name}(x)" for name in UNARY}
        | {name: f"{{}}.{name}(x, y)" for name in BINARY}
        | OTHERS
    )
    return found | {
        "max": "{}.max(x, axis=1)",
        "sum": "{}.sum(x)",
        "broadcast_arrays": "{}.broadcast_arrays(x, v)",
    }


def best(statements: list[str], names: dict[str, Any], rounds: int) -> list[float]:
    """Microseconds of each statement: the best round of each, round by round."""
    timers = [
        timeit.Timer(f"done({statement})", timer=time.process_time, globals=names)
        for statement in statements
    ]
    # the first one compiles
    first = [timer.timeit(1) for timer in timers] and [timer.timeit(1) for timer in timers]
    number = max(1, min(200, int(5e-4 / max(*first, 1e-6))))
    times = [[timer.timeit(number) / number * 1e6 for timer in timers] for _ in range(rounds)]
    return [min(column) for column in zip(*times, strict=True)]


def operands(xp: Any, side: int) -> dict[str, Any]:
    x = xp.add(xp.multiply(xdevice.random.uniform(side, side), 0.1), xp.eye(side))
    v = xp.linspace(0.1, 0.9, side)
    places = xp.astype(xp.arange(side), xp.int64)
    return {
        "x": x, "y": xp.add(xp.permute_dims(x, (1, 0)), 0.1), "v": v, "b": xp.greater(x, 0.05), "places": places,
        "i": xp.astype(xp.multiply(x, 100.0), xp.int32), "one": xp.asarray(1, dtype=xp.int32),
        "three": x[:, :3], "order": xp.argsort(x, axis=1), "shape": (side, side),
        "m": x[:128, :128] + 0, "numbers": [float(n) for n in range(10000)],
    }  # fmt: skip


def compared(name: str, side: int, rounds: int, whole: bool) -> None:
    xp, compat = xdevice.array_namespace(), importlib.import_module(COMPAT[name])
    for part in ("linalg", "fft"):
        importlib.import_module(f"{COMPAT[name]}.{part}")
    names: dict[str, Any] = operands(xp, side)
    names["z"] = xp.astype(names["x"], xp.complex64)
    wait = getattr(__import__("jax"), "block_until_ready", None) if name == "jax" else None
    names |= {"xp": xp, "compat": compat, "done": wait or (lambda made: made)}
    ratios: dict[str, tuple[float, float, float]] = {}
    again = list(calls())
    for turn in range(1, 4):
        for function in again:
            statements = [calls()[function].format(*[one] * 2) for one in ("compat", "xp")]
            try:
                theirs, ours = best(statements, names, rounds * turn)
            except Exception as error:
                print(
                    f"{name} {function}: not compared: {type(error).__name__}: {str(error).splitlines()[0][:80]}"
                )
                continue
            ratios[function] = min(
                ratios.get(function, (math.inf,)), (ours / theirs, ours, ours - theirs)
            )
        worst = sorted(ratios.items(), key=lambda item: -item[1][0])
        again = [function for function, (ratio, *_) in worst if ratio > 1.1]
        print(
            f"{name}: {len(ratios)} functions of {side}x{side}, {len(again)} above 1.1 times array-api-compat's"
        )
    for function, (ratio, ours, more) in worst if whole else worst[: len(again) or 10]:
        print(f"  {function:24}{ratio:8.2f}{ours:12.1f} us{more:12.1f} us more", flush=True)


def against_the_framework(name: str, framework: Any, rounds: int) -> None:
    names = {
        "x": xdevice.random.uniform(4, 4),
        "xp": xdevice.array_namespace(),
        "f": framework,
        "done": lambda made: made,
    }
    pairs = [
        best([native, ours], names, rounds)
        for native, ours in zip(NATIVE[name], OURS, strict=True)
    ]
    print(
        f"{name}: add, matmul, sum of 4x4:",
        *(f"{ours:.1f} us ({ours / native:.2f})" for native, ours in pairs),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backends", nargs="*", default=list(xdevice.backends()))
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    for name in arguments.backends:
        with xdevice.use_backend(name) as backend:
            names = {
                "x": xdevice.random.uniform(4, 4),
                "look": xdevice.array_namespace,
                "done": lambda made: made,
            }
            (look_up,) = best(["look(x)"], names, 100)
            print(f"{name}: a look-up takes {look_up:.2f} us")
            if name in COMPAT:
                compared(name, arguments.side, arguments.rounds, arguments.all)
            else:
                against_the_framework(name, backend.framework, arguments.rounds)


if __name__ == "__main__":
    main()
