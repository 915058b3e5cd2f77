"""What the namespace costs: a look-up, and `add`, `matmul` and `sum` of 4x4 against the framework's own, interleaved.

python benchmarks/namespace.py [backend ...]
"""

from __future__ import annotations

import sys
import timeit

import xdevice

NATIVE = {
    "torch": ("torch.add(x, x)", "torch.matmul(x, x)", "torch.sum(x)"),
    "tensorflow": ("tf.add(x, x)", "tf.matmul(x, x)", "tf.reduce_sum(x)"),
    "paddle": ("paddle.add(x, x)", "paddle.matmul(x, x)", "paddle.sum(x)"),
    "mxnet": ("mx.np.add(x, x)", "mx.np.matmul(x, x)", "mx.np.sum(x)"),
    "jax": ("jnp.add(x, x)", "jnp.matmul(x, x)", "jnp.sum(x)"),
    "numpy": ("np.add(x, x)", "np.matmul(x, x)", "np.sum(x)"),
}
OURS = ("xp.add(x, x)", "xp.matmul(x, x)", "xp.sum(x)")
ROUNDS, CALLS = 150, 50  # short ones: beside other programs a long one is seldom alone


def best(statements: tuple[str, ...], names: dict[str, object]) -> list[float]:
    """Nanoseconds of each statement: the best round of each, round by round."""
    timers = [timeit.Timer(statement, globals=names) for statement in statements]
    rounds = [[timer.timeit(CALLS) / CALLS * 1e9 for timer in timers] for _ in range(ROUNDS)]
    return [min(times) for times in zip(*rounds, strict=True)]


def main() -> None:
    print(f"{'':12}{'look-up':>10}{'add':>18}{'matmul':>18}{'sum':>18}   ns, and times the framework's own")
    for name in sys.argv[1:] or xdevice.backends():
        with xdevice.use(name) as backend:
            xp = xdevice.array_namespace()
            x = xdevice.rand(4, 4)
            framework = backend.framework
            names = {"x": x, "xp": xp, "array_namespace": xdevice.array_namespace, "np": framework, "mx": framework}
            names |= {name: framework, "tf": framework, "jnp": getattr(framework, "numpy", None)}
            look_up, *times = best(("array_namespace(x)", *NATIVE[name], *OURS), names)
            pairs = zip(times[3:], times[:3], strict=True)
            cells = "".join(f"{ours:>10.0f} ({ours / native:.2f})" for ours, native in pairs)
            print(f"{name:12}{look_up:>10.0f}{cells}", flush=True)


if __name__ == "__main__":
    main()
