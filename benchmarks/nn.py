"""What neural-network functions cost over the framework's own, forward and interleaved, at a small and a middle size.

python benchmarks/nn.py [backend ...]

The framework's own is what its users would call with the same data: on TensorFlow with images as it has them, (N, H, W,
C), without transpositions. NumPy has none.
"""

from __future__ import annotations

import sys
import timeit

import numpy as np

import xdevice

OURS = {
    "relu": "nn.relu(x)",
    "sigmoid": "nn.sigmoid(x)",
    "softmax": "nn.softmax(x)",
    "log_softmax": "nn.log_softmax(x)",
    "cross_entropy": "nn.cross_entropy(x, labels)",
    "one_hot": "nn.one_hot(labels, 10)",
    "dropout": "nn.dropout(x, mask, 0.5)",
    "conv2d": "nn.conv2d(images, kernel, bias, padding=2)",
    "max_pool2d": "nn.max_pool2d(images, 2)",
    "avg_pool2d": "nn.avg_pool2d(images, 2)",
}
NATIVE = {
    "torch": {
        "relu": "torch.relu(x)",
        "sigmoid": "torch.sigmoid(x)",
        "softmax": "torch.softmax(x, -1)",
        "log_softmax": "torch.log_softmax(x, -1)",
        "cross_entropy": "F.cross_entropy(x, labels)",
        "one_hot": "F.one_hot(labels, 10).to(torch.float32)",
        "dropout": "x * mask / 0.5",
        "conv2d": "F.conv2d(images, kernel, bias, padding=2)",
        "max_pool2d": "F.max_pool2d(images, 2)",
        "avg_pool2d": "F.avg_pool2d(images, 2)",
    },
    "tensorflow": {
        "relu": "tf.nn.relu(x)",
        "sigmoid": "tf.sigmoid(x)",
        "softmax": "tf.nn.softmax(x)",
        "log_softmax": "tf.nn.log_softmax(x)",
        "cross_entropy": "tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x))",
        "one_hot": "tf.one_hot(labels, 10)",
        "dropout": "x * tf.cast(mask, x.dtype) / 0.5",
        "conv2d": "tf.nn.bias_add(tf.nn.conv2d(images_last, kernel_last, 1, 'SAME'), bias)",
        "max_pool2d": "tf.nn.max_pool2d(images_last, 2, 2, 'VALID')",
        "avg_pool2d": "tf.nn.avg_pool2d(images_last, 2, 2, 'VALID')",
    },
    "paddle": {
        "relu": "F.relu(x)",
        "sigmoid": "F.sigmoid(x)",
        "softmax": "F.softmax(x)",
        "log_softmax": "F.log_softmax(x)",
        "cross_entropy": "F.cross_entropy(x, labels)",
        "one_hot": "F.one_hot(labels, 10)",
        "dropout": "x * paddle.cast(mask, x.dtype) / 0.5",
        "conv2d": "F.conv2d(images, kernel, bias, padding=2)",
        "max_pool2d": "F.max_pool2d(images, 2)",
        "avg_pool2d": "F.avg_pool2d(images, 2)",
    },
    "mxnet": {
        "relu": "npx.relu(x)",
        "sigmoid": "npx.sigmoid(x)",
        "softmax": "npx.softmax(x)",
        "log_softmax": "npx.log_softmax(x)",
        "cross_entropy": "-mx.np.mean(npx.pick(npx.log_softmax(x), labels))",
        "one_hot": "npx.one_hot(labels, 10)",
        "dropout": "x * mask / 0.5",
        "conv2d": "npx.convolution(images, kernel, bias, kernel=(5, 5), pad=(2, 2), num_filter=6)",
        "max_pool2d": "npx.pooling(images, kernel=(2, 2), stride=(2, 2), pool_type='max')",
        "avg_pool2d": "npx.pooling(images, kernel=(2, 2), stride=(2, 2), pool_type='avg')",
    },
    "jax": {
        "relu": "jax.nn.relu(x)",
        "sigmoid": "jax.nn.sigmoid(x)",
        "softmax": "jax.nn.softmax(x)",
        "log_softmax": "jax.nn.log_softmax(x)",
        "cross_entropy": "-jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1))",
        "one_hot": "jax.nn.one_hot(labels, 10)",
        "dropout": "x * mask / 0.5",
        "conv2d": "lax.conv_general_dilated(images, kernel, (1, 1), [(2, 2)] * 2) + bias[:, None, None]",
        "max_pool2d": "lax.reduce_window(images, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), 'VALID')",
        "avg_pool2d": "lax.reduce_window(images, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 2, 2), 'VALID') / 4",
    },
    "numpy": OURS,
}
SIZES = {"small": ((4, 10), (1, 1, 8, 8), 200), "middle": ((256, 1000), (64, 1, 28, 28), 10)}
"""Of `x`, of the images, and how many calls are timed together."""
ROUNDS = 11


def ratio(names: dict[str, object], native: str, ours: str, calls: int) -> tuple[float, float]:
    """Microseconds of ours, and times the framework's own: the best round of each, round by round."""
    timers = [
        timeit.Timer(f"for _ in range({calls}): made = {call}\nsync()", globals=names)
        for call in (native, ours)
    ]
    rounds = [[timer.timeit(1) / calls * 1e6 for timer in timers] for _ in range(ROUNDS)]
    own, mine = (min(times) for times in zip(*rounds, strict=True))
    return mine, mine / own


def names_of(
    framework: object, shape: tuple[int, int], images: tuple[int, ...]
) -> dict[str, object]:
    xp = xdevice.array_namespace()
    labels = xdevice.random.integers((shape[0],), high=10)
    names = {
        "x": xdevice.random.normal(shape),
        "mask": xdevice.random.bernoulli(shape),
        "labels": labels,
    }
    names |= {
        "images": xdevice.random.normal(images),
        "kernel": xdevice.random.normal(6, 1, 5, 5),
        "bias": xp.ones(6),
    }
    names["images_last"] = xp.permute_dims(names["images"], (0, 2, 3, 1))
    names["kernel_last"] = xp.permute_dims(names["kernel"], (2, 3, 1, 0))
    functional = getattr(getattr(framework, "nn", None), "functional", None)
    names |= dict.fromkeys(("torch", "tf", "paddle", "mx", "jax"), framework)
    names |= {
        "F": functional,
        "npx": getattr(framework, "npx", None),
        "jnp": getattr(framework, "numpy", None),
    }
    return names | {"nn": xdevice.nn, "np": np, "lax": getattr(framework, "lax", None)}


def main() -> None:
    print(
        f"{'':12}"
        + "".join(f"{function:>17}" for function in OURS)
        + "   us, and times the framework's own"
    )
    for name in sys.argv[1:] or xdevice.backends():
        with xdevice.use_backend(name) as backend:
            for size, (shape, images, calls) in SIZES.items():
                names = names_of(backend.framework, shape, images)
                names["sync"] = xdevice.sync
                cells = [
                    ratio(names, NATIVE[name][function], ours, calls)
                    for function, ours in OURS.items()
                ]
                row = "".join(f"{f'{took:.0f} ({times:.2f})':>17}" for took, times in cells)
                print(f"{name + ' ' + size:18}"[:18] + row, flush=True)


if __name__ == "__main__":
    main()
