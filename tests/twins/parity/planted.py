"""A small network trained for three steps, written once for every framework, with one fault planted in it if asked.

    PLANTED="eps of 1e-3" xdevice parity tests/twins/parity/planted.py --backends torch,paddle

`FAULTS` and `SUBTLE` say which there are, and which record shows each first. The reference has none.
"""

from __future__ import annotations

import math
import os

import xdevice

SAMPLES, CHANNELS, SIZE, FILTERS, HIDDEN, CLASSES, STEPS = 16, 2, 8, 4, 12, 5, 3
RATE, MOMENTUM, EPS, SLOPE, MOVING = 0.1, 0.9, 1e-5, 0.01, 0.1

FAULTS = {
    # what is fed
    "images not scaled": ("inputs", 0),
    "images mirrored": ("inputs", 0),
    "channels swapped": ("inputs", 0),
    "another order of samples": ("inputs", 0),
    "images of another seed": ("inputs", 0),
    "labels from 1": ("labels", 0),
    "one label wrong": ("labels", 0),
    # weights
    "one weight off by 1e-3": ("weights", 0),
    "kernel transposed": ("weights", 0),
    "bias of zeros": ("weights", 0),
    "another scale of initial weights": ("weights", 0),
    "weights went through float16": ("weights", 0),
    # convolution
    "kernel flipped": ("convolved", 0),
    "no padding": ("convolved", 0),
    "stride of 2": ("convolved", 0),
    "no bias of the convolution": ("convolved", 0),
    "shifted by a pixel": ("convolved", 0),
    # batch norm
    "eps of 1e-3": ("normalized", 0),
    "unbiased variance": ("normalized", 0),
    "normalized by sample": ("normalized", 0),
    "no beta": ("normalized", 0),
    "moving statistics while training": ("normalized", 0),
    "moving average the other way round": ("statistics", 0),
    "moving variance biased": ("statistics", 0),
    "moving statistics kept": ("statistics", 0),
    # activation and pooling
    "slope of 0.3": ("activated", 0),
    "relu for leaky relu": ("activated", 0),
    "average for maximum": ("pooled", 0),
    "windows overlap": ("pooled", 0),
    # dense layers
    "flattened channels last": ("flat", 0),
    "no bias of the dense layer": ("hidden", 0),
    "sigmoid for tanh": ("hidden", 0),
    "dropout not scaled": ("hidden", 0),
    "dropout left out": ("hidden", 0),
    "softmax before the loss": ("scores", 0),
    "a temperature": ("scores", 0),
    # loss
    "sum for mean": ("loss", 0),
    "labels smoothed": ("loss", 0),
    "decay in the loss": ("loss", 0),
    "squares for cross-entropy": ("loss", 0),
    # gradients
    "gradients clipped": ("gradients", 0),
    "one layer detached": ("gradients", 0),
    "gradients kept between steps": ("gradients", 1),
    # optimizer
    "momentum of 0.8": ("weights", 2),
    "momentum of Nesterov": ("weights", 1),
    "another learning rate": ("weights", 1),
    "weights decay": ("weights", 1),
    "momentum dampened": ("weights", 1),
    "schedule a step early": ("weights", 2),
    "one layer frozen": ("weights", 1),
}
SUBTLE = {
    "one weight off by 5e-7": ("weights", 0),
    "images scaled by 1.0000005": ("inputs", 0),
    "bias off by 1e-7": ("weights", 0),
    "eps of 1.01e-5": ("normalized", 0),
    "eps beside the root": ("normalized", 0),
    "slope of 0.0100001": ("activated", 0),
    "dropout of 0.2000001": ("hidden", 0),
    "a temperature of 1.000001": ("scores", 0),
    "loss scaled by 1.000001": ("loss", 0),
    "gradients scaled by 1.000001": ("gradients", 0),
}


def data(has):
    with xdevice.random.seed(1 if has("images of another seed") else 0):
        images = xdevice.random.normal(SAMPLES, CHANNELS, SIZE, SIZE)
    with xdevice.random.seed(2):
        labels = xdevice.random.integers((SAMPLES,), high=CLASSES, dtype="int32")
        mask = xdevice.random.bernoulli(SAMPLES, HIDDEN, p=0.8)
    xp = xdevice.array_namespace()
    images = images * (
        1.01
        if has("images not scaled")
        else 1.0000005
        if has("images scaled by 1.0000005")
        else 1
    )
    images = xp.flip(images, axis=3) if has("images mirrored") else images
    images = xp.flip(images, axis=1) if has("channels swapped") else images
    images = xp.roll(images, 1, axis=0) if has("another order of samples") else images
    labels = labels + 1 if has("labels from 1") else labels
    one = xp.astype(xp.arange(SAMPLES) == 3, xp.int32)
    labels = (labels + one) % CLASSES if has("one label wrong") else labels
    return images, labels, mask


def first_weights(has):
    xp = xdevice.array_namespace()
    flat = FILTERS * (SIZE // 2) ** 2
    with xdevice.random.seed(3):
        weights = {
            "kernel": xdevice.random.normal(FILTERS, CHANNELS, 3, 3, scale=0.3),
            "kernel_bias": xdevice.random.normal(FILTERS, scale=0.1),
            "gamma": xdevice.random.uniform(FILTERS, low=0.5, high=1.5),
            "beta": xdevice.random.normal(FILTERS, scale=0.1),
            "dense": xdevice.random.normal(
                flat, HIDDEN, scale=0.11 if has("another scale of initial weights") else 0.1
            ),
            "dense_bias": xdevice.random.normal(HIDDEN, scale=0.1),
            "head": xdevice.random.normal(HIDDEN, CLASSES, scale=0.3),
            "head_bias": xdevice.random.normal(CLASSES, scale=0.1),
        }
    first = xp.astype(
        xp.arange(flat * HIDDEN) == 100,
        xp.float64 if weights["dense"].dtype == xp.float64 else xp.float32,
    )
    off = (
        1e-3 if has("one weight off by 1e-3") else 5e-7 if has("one weight off by 5e-7") else 0
    )
    if off:
        weights["dense"] = weights["dense"] + off * xp.reshape(first, (flat, HIDDEN))
    if has("kernel transposed"):
        weights["kernel"] = xp.permute_dims(weights["kernel"], (0, 1, 3, 2))
    if has("bias of zeros"):
        weights["dense_bias"] = xp.zeros_like(weights["dense_bias"])
    if has("bias off by 1e-7"):
        weights["head_bias"] = weights["head_bias"] + 1e-7
    if has("weights went through float16"):
        held = {name: xdevice.to_numpy(x) for name, x in weights.items()}
        weights = {
            name: xdevice.tensor(x.astype("float16").astype(x.dtype))
            for name, x in held.items()
        }
    return weights


def batch_norm(x, weights, moving, has):
    """The normalized images, and the statistics of the batch."""
    xp = xdevice.array_namespace(x)
    axes = (1, 2, 3) if has("normalized by sample") else (0, 2, 3)
    number = math.prod(x.shape[axis] for axis in axes)
    mean = xp.mean(x, axis=axes, keepdims=True)
    variance = xp.mean((x - mean) ** 2, axis=axes, keepdims=True)
    used = (mean, variance * (number / (number - 1)) if has("unbiased variance") else variance)
    if has("moving statistics while training"):
        used = moving
    eps = 1e-3 if has("eps of 1e-3") else 1.01e-5 if has("eps of 1.01e-5") else EPS
    root = xp.sqrt(used[1]) + eps if has("eps beside the root") else xp.sqrt(used[1] + eps)
    shape = (1, FILTERS, 1, 1)
    made = (x - used[0]) / root * xp.reshape(weights["gamma"], shape)
    made = made if has("no beta") else made + xp.reshape(weights["beta"], shape)
    unbiased = variance * (1 if has("moving variance biased") else number / (number - 1))
    return made, (mean, unbiased)


def forward(weights, images, mask, moving, has):
    """What each layer gives, by name."""
    nn, xp = xdevice.nn, xdevice.array_namespace(images)
    seen = {}
    kernel = (
        xp.flip(weights["kernel"], axis=(2, 3)) if has("kernel flipped") else weights["kernel"]
    )
    bias = None if has("no bias of the convolution") else weights["kernel_bias"]
    padding, stride = (0 if has("no padding") else 1), (2 if has("stride of 2") else 1)
    x = nn.conv2d(images, kernel, bias, padding=padding, stride=stride)
    x = xp.roll(x, 1, axis=3) if has("shifted by a pixel") else x
    seen["convolved"] = x
    x, seen["statistics"] = batch_norm(x, weights, moving, has)
    seen["normalized"] = x
    slope = {
        "slope of 0.3": 0.3,
        "slope of 0.0100001": 0.0100001,
        "relu for leaky relu": 0.0,
    }.get(has.fault, SLOPE)
    x = seen["activated"] = xp.where(x > 0, x, slope * x)
    pool = nn.avg_pool2d if has("average for maximum") else nn.max_pool2d
    x = seen["pooled"] = (
        pool(x, 3, stride=2, padding=1) if has("windows overlap") else pool(x, 2)
    )
    x = xp.permute_dims(x, (0, 2, 3, 1)) if has("flattened channels last") else x
    x = seen["flat"] = xp.reshape(x, (SAMPLES, -1))
    # fewer come where a fault has made the images smaller
    rows = weights["dense"][: x.shape[1]]
    x = xp.matmul(x, rows)
    x = x if has("no bias of the dense layer") else x + weights["dense_bias"]
    x = nn.sigmoid(x) if has("sigmoid for tanh") else xp.tanh(x)
    p = 0.2000001 if has("dropout of 0.2000001") else 0.0 if has("dropout not scaled") else 0.2
    x = x if has("dropout left out") else xp.where(mask, x / (1 - p), 0 * x)
    seen["hidden"] = x
    scores = xp.matmul(x, weights["head"]) + weights["head_bias"]
    scores = scores * (
        1.1 if has("a temperature") else 1.000001 if has("a temperature of 1.000001") else 1
    )
    seen["scores"] = nn.softmax(scores) if has("softmax before the loss") else scores
    return seen


def loss_of(weights, images, labels, mask, moving, has):
    nn, xp = xdevice.nn, xdevice.array_namespace(images)
    if has("one layer detached"):
        weights = {**weights, "dense": xdevice.tensor(xdevice.to_numpy(has.weights["dense"]))}
    seen = forward(weights, images, mask, moving, has)
    scores = seen["scores"]
    loss = nn.cross_entropy(scores, labels)
    if has("labels smoothed"):
        loss = 0.9 * loss - 0.1 * xp.mean(nn.log_softmax(scores))
    if has("decay in the loss"):
        loss = loss + 1e-3 * xp.sum(weights["dense"] ** 2)
    if has("squares for cross-entropy"):
        loss = xp.mean(
            (nn.softmax(scores) - nn.one_hot(labels, CLASSES, dtype=scores.dtype)) ** 2
        )
    scale = (
        SAMPLES if has("sum for mean") else 1.000001 if has("loss scaled by 1.000001") else 1
    )
    return loss * scale, seen


class Planted:
    """Asks for a fault by name; a name that is in no list is a mistake of this file."""

    def __init__(self, fault=""):
        assert not fault or fault in FAULTS or fault in SUBTLE, fault
        self.fault = fault

    def __call__(self, name):
        assert name in FAULTS or name in SUBTLE, name
        return self.fault == name


def stepped(weights, held, grads, step, has):
    """SGD with momentum: the new weights and momenta."""
    momentum = 0.8 if has("momentum of 0.8") else MOMENTUM
    rate = 0.101 if has("another learning rate") else RATE
    rate *= 0.5 if step >= (1 if has("schedule a step early") else 2) else 1
    made, kept = {}, {}
    for name, w in weights.items():
        g = grads[name] + 1e-2 * w if has("weights decay") else grads[name]
        g_now = 0.9 * g if has("momentum dampened") else g
        kept[name] = g_now if held is None else momentum * held[name] + g_now
        move = g + momentum * kept[name] if has("momentum of Nesterov") else kept[name]
        made[name] = w if name == "dense" and has("one layer frozen") else w - rate * move
    return made, kept


def train(fault="", steps=STEPS):
    has = Planted(fault)
    xp = xdevice.array_namespace()
    images, labels, mask = data(has)
    xdevice.parity.log("inputs", images)
    xdevice.parity.log("labels", labels)
    weights, held, before = first_weights(has), None, None
    moving = (xp.zeros((1, FILTERS, 1, 1)), xp.ones((1, FILTERS, 1, 1)))
    differentiated = xdevice.math.value_and_grad(loss_of, has_aux=True)
    for step in range(steps):
        xdevice.parity.log("weights", weights)
        has.weights = weights
        (loss, seen), grads = differentiated(
            weights, images, labels % CLASSES, mask, moving, has
        )
        rate = 1 - MOVING if has("moving average the other way round") else MOVING
        if not has("moving statistics kept"):
            moving = tuple(
                (1 - rate) * old + rate * new
                for old, new in zip(moving, seen["statistics"], strict=True)
            )
        for name in ("convolved", "normalized"):
            xdevice.parity.log(name, seen[name])
        xdevice.parity.log("statistics", moving)
        for name in ("activated", "pooled", "flat", "hidden", "scores"):
            xdevice.parity.log(name, seen[name])
        xdevice.parity.log("loss", loss)
        if has("gradients clipped"):
            grads = {name: xp.clip(g, -0.01, 0.01) for name, g in grads.items()}
        if has("gradients kept between steps") and before is not None:
            grads = {name: g + before[name] for name, g in grads.items()}
        if has("gradients scaled by 1.000001"):
            grads = {name: g * 1.000001 for name, g in grads.items()}
        xdevice.parity.log("gradients", grads)
        before = grads
        weights, held = stepped(weights, held, grads, step, has)
    xdevice.parity.log("weights", weights)


if __name__ == "__main__":
    is_reference = os.environ["XDEVICE_BACKEND"] == os.environ.get("REFERENCE", "torch")
    train("" if is_reference else os.environ.get("PLANTED", ""))
