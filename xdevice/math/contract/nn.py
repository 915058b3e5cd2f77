"""The kernels (functions on tensors) that `Backend.nn()` returns, and from which `xdevice.nn` is built.

A kernel is the framework's own function, corrected where that function does not keep the rules below. The core promises
a kernel that

- tensors are dense, of this backend and on one device; `x`, `logits`, `kernel` and `bias` are floats of one dtype;
- images are (N, C, H, W), kernels (O, C, kh, kw), biases (O,), logits (N, C), and their sizes fit. Nothing is empty but
  a batch of images and what `relu` and `sigmoid` take;
- `axis` is counted from the front and exists; `stride`, `padding` and `size` are pairs of ints for height and width;
- `labels` and `indices` are int32 or int64, and in range, except while a function is traced and where the adapter
  `guards` them;
- in pools `padding` is at most half of the window, and every window fits into the padded image.

The result has the dtype of `x` and is on the device of `x`. If the framework has gradients, they flow to all floats
that are given: the gradient of `relu` is 0 at 0, that of `max_pool2d` goes to the first of equal elements in a window.
"""

from __future__ import annotations

from typing import Final

KERNELS: Final = (
    "relu",  # relu(x)
    "sigmoid",  # sigmoid(x)
    "softmax",  # softmax(x, axis)
    "log_softmax",  # log_softmax(x, axis): without a bound below
    "cross_entropy",  # cross_entropy(logits, labels): the mean over the batch, without a bound above
    "one_hot",  # one_hot(indices, n, name): of a dtype
    "conv2d",  # conv2d(x, kernel, bias, stride, padding): the kernel is not flipped, the bias may be None
    "max_pool2d",  # max_pool2d(x, size, stride, padding): padding is below all numbers
    "avg_pool2d",  # avg_pool2d(x, size, stride, padding): padding counts as zeros
    "dropout",  # dropout(x, mask, keep): x * mask / keep
)

BY_HAND: Final = {
    # attention(q, k, v, mask, causal): a query that the mask leaves no key gives zeros
    "attention": ("causal",),
    # batch_norm(x, mean, variance, weight, bias, eps): of the axis 1; differentiable in all
    "batch_norm": ("eps",),
    # binary_cross_entropies(logits, labels): of each element
    "binary_cross_entropies": (),
    # cross_entropies(logits, labels): of each row
    "cross_entropies": (),
    # embedding(indices, table): rows of the table
    "embedding": (),
    # gelu(x, approximate): by erf, or approximately by tanh
    "gelu": ("approximate",),
    # layer_norm(x, weight, bias, eps): over the last axis
    "layer_norm": ("eps",),
}
"""Kernels that the core implements itself, on the namespace, each with its arguments that are not tensors. An adapter
overrides those that its framework has. Its `gelu`, `layer_norm` and `batch_norm` may return NotImplemented for a case
that they cannot compute: then the core's is used."""

OPTIONAL: Final = {
    # compiled(kernel, settings): makes of a kernel that the core has by hand one that the framework compiles;
    # `settings` are the names of its arguments that are no tensors
    "compiled": None,
    # ends(indices): the least and the greatest of some integers as ints, by one read of the host. Without it the core
    # reads them all
    "ends": None,
    # erf(x): the error function, which the core has not by hand: gelu needs it
    "erf": None,
    # guards(indices, place), with the kind of the device that they are on: whether `cross_entropy`, `cross_entropies`,
    # `embedding` and `one_hot` of floats themselves, here and now, make no finite number of an index that is below 0 or
    # not below the number of classes or rows. They raise, at once or when the program next waits, or give NaN. If so,
    # the core does not read the indices, unless a kernel raises: then it says which is wrong. In blocking mode an
    # adapter guards nothing that would not raise at once
    "guards": None,
}
"""Optional names, each with its default value."""

STEPS: Final = (
    "adam",  # adam(rows, step, rate, betas, eps): new (p, m, v) for each row (p, g, m, v); not recorded
)
"""Optional kernels of `xdevice.optim`, which has its own versions. They get float32 tensors on one device; `step`, the
number of steps before, is an integer tensor without dimensions on that device, and `rate` a number or such a tensor of
float32. They may return NotImplemented for a case that they cannot compute."""

TRACED: Final = "TRACED"
"""The name of an optional set: those of `STEPS` that also take the symbols of a traced function, or return
NotImplemented for them."""
