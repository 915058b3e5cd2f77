"""The kernels (functions on tensors) that `Backend.nn()` returns, and from which `xdevice.nn`
is built.

A kernel is the framework's own function, corrected where that function does not keep the rules
below. The core promises a kernel that

- tensors are dense, of this backend and on one device; `x`, `logits`, `kernel` and `bias` are
  floats of one dtype;
- images have the shape (N, C, H, W), kernels (O, C, kh, kw), biases (O,) and logits (N, C), and
  these sizes fit together. No tensor is empty, except a batch of images and the argument of
  `relu` and `sigmoid`;
- `axis` is counted from the front and exists; `stride`, `padding` and `size` are pairs of ints
  for height and width;
- `labels` and `indices` are int32 or int64. They are in range, with two exceptions: while a
  function is traced, and if the adapter's `guards` returned True for them;
- in pools `padding` is at most half of the window, and every window fits into the padded image.

The result has the dtype of `x` and is on the device of `x`. If the framework has gradients,
they flow to all floats among the arguments. The gradient of `relu` is 0 at 0; that of
`max_pool2d` goes to the first of equal elements in a window.
"""

from __future__ import annotations

from typing import Final

# the kernels that each adapter must have
KERNELS: Final = (
    "relu",  # relu(x)
    "sigmoid",  # sigmoid(x)
    "softmax",  # softmax(x, axis)
    "log_softmax",  # log_softmax(x, axis): not the log of a softmax, whose 0 would become -inf
    # cross_entropy(logits, labels): the mean over the batch; large losses are not cut off
    "cross_entropy",
    "one_hot",  # one_hot(indices, n, name): for `n` classes, in the dtype `name`
    # conv2d(x, kernel, bias, stride, padding): the kernel is not flipped, the bias may be None
    "conv2d",
    "max_pool2d",  # max_pool2d(x, size, stride, padding): padding is below all numbers
    "avg_pool2d",  # avg_pool2d(x, size, stride, padding): padding counts as zeros
    "dropout",  # dropout(x, mask, keep): x * mask / keep
)

BY_HAND: Final = {
    # attention(q, k, v, mask, causal): a query for which the mask leaves no key gives zeros
    "attention": ("causal",),
    # batch_norm(x, mean, variance, weight, bias, eps): for each channel (axis 1);
    # differentiable in all tensors
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
"""Kernels that the core implements itself, on the namespace, each with the names of those
arguments that are not tensors. An adapter overrides those that its framework has. Its `gelu`,
`layer_norm` and `batch_norm` may return NotImplemented for a case that they cannot compute; the
core then uses its own kernel."""

OPTIONAL: Final = {
    # compiled(kernel, settings): returns a kernel in `BY_HAND` compiled by the framework;
    # `settings` are the names of its arguments that are not tensors
    "compiled": None,
    # ends(indices): a list with the least and the greatest of some integers, as ints, read by
    # the host at once. Without it the core reads all of them
    "ends": None,
    # erf(x): the error function. The core's gelu needs it and has no version of its own
    "erf": None,
    # guards(indices, kind): whether the kernels `cross_entropy`, `cross_entropies`, `embedding`
    # and `one_hot` of floats detect by themselves, in this call, indices out of range (below 0,
    # or not below the number of classes or rows); `kind` is the kind of the device that the
    # indices are on. The kernels then raise, at once or when the program next waits, or give
    # NaN, but no finite number. The core does not read such indices before the call; it reads
    # them if the kernel raises, to say which is wrong. In blocking mode, guards returns True
    # only if the kernels raise at once
    "guards": None,
}
"""Optional names, each with its default value."""

STEPS: Final = (
    # adam(rows, step, rate, betas, eps): returns new (p, m, v) for each row of a parameter p,
    # its gradient g, and the running means m of the gradients and v of their squares
    "adam",
)
"""Optional kernels for `xdevice.optim`, which has its own versions of them. The kernels get
float32 tensors on one device, and return new ones, through which no gradient flows. `step`, the
number of steps made before, is an integer tensor without dimensions on that device; `rate` is a
number, or a float32 tensor without dimensions. A kernel may return NotImplemented for a case
that it cannot compute."""

TRACED: Final = "TRACED"
"""The name of an optional attribute of `Backend.nn()`: a collection of those kernels in `STEPS`
that also take the symbols of a traced function, or return NotImplemented for them."""
