"""The kernels (functions on tensors) that `Backend.nn()` returns. The functions of `xdevice.nn` are built from these
kernels.

A kernel is the framework's own function, corrected if that function does not follow the rules
below. Each kernel may rely on the following promises of the core:

- tensors are dense, belong to this backend, and are on the same device; `x`, `logits`, `kernel`
  and `bias` contain floats of the same dtype;
- images have the shape (N, C, H, W), kernels (O, C, kh, kw), biases (O,) and logits (N, C), and
  these sizes match. No tensor is empty, with two exceptions: a batch of images, and the argument
  of `relu` and `sigmoid`, may be empty;
- `axis` is the non-negative index of an axis that exists; `stride`, `padding` and `size` are
  pairs of ints for height and width;
- `labels` and `indices` are int32 or int64. They are in range, with two exceptions: while a
  function is traced, and if the adapter's `guards` returned True for these indices;
- in pools, `padding` is at most half of the window, and the window fits into the padded image.

The result has the dtype of `x` and is on the device of `x`. If the framework has gradients, they flow to all
arguments that are tensors of floats. The gradient of `relu` at 0 is 0. If several elements of a window are equally
great, the gradient of `max_pool2d` flows only to the first of these elements.
"""

from __future__ import annotations

from typing import Final

# the kernels that each adapter must have
KERNELS: Final = (
    "relu",  # relu(x)
    "sigmoid",  # sigmoid(x)
    "softmax",  # softmax(x, axis)
    # log_softmax(x, axis): not computed as the log of a softmax, in which 0 would become -inf
    "log_softmax",
    # cross_entropy(logits, labels): the mean loss of the batch; large losses are not cut off
    "cross_entropy",
    "one_hot",  # one_hot(indices, n, name): for `n` classes, in the dtype `name`
    # conv2d(x, kernel, bias, stride, padding): the kernel is not flipped, the bias may be None
    "conv2d",
    "max_pool2d",  # max_pool2d(x, size, stride, padding): padding is less than any number
    "avg_pool2d",  # avg_pool2d(x, size, stride, padding): padding consists of zeros
    "dropout",  # dropout(x, mask, keep): x * mask / keep
)

BY_HAND: Final = {
    # attention(q, k, v, mask, causal): if the mask hides all keys from a query, its result is zeros
    "attention": ("causal",),
    # batch_norm(x, mean, variance, weight, bias, eps): for each channel (axis 1);
    # differentiable in all tensors
    "batch_norm": ("eps",),
    # binary_cross_entropies(logits, labels): the loss of each element
    "binary_cross_entropies": (),
    # cross_entropies(logits, labels): the loss of each row
    "cross_entropies": (),
    # embedding(indices, table): the rows of the table at the indices
    "embedding": (),
    # gelu(x, approximate): computed with erf, or approximately with tanh
    "gelu": ("approximate",),
    # layer_norm(x, weight, bias, eps): normalizes over the last axis
    "layer_norm": ("eps",),
}
"""Kernels that the core implements itself, with functions of the array namespace. Each name is mapped to the names of
those arguments that are not tensors. An adapter overrides the kernels that its framework has. The adapter's `gelu`,
`layer_norm` and `batch_norm` may return NotImplemented for a case that they cannot compute; the core then uses its
own kernel."""

OPTIONAL: Final = {
    # compiled(kernel, settings): returns `kernel`, one of the kernels in `BY_HAND`, compiled by
    # the framework; `settings` are the names of those arguments of the kernel that are not
    # tensors
    "compiled": None,
    # ends(indices): returns a list of two ints, the least and the greatest element of a tensor
    # of integers, which the host reads together. Without this function, the core reads all
    # elements
    "ends": None,
    # erf(x): the error function. The core's gelu needs this function, and the core has no
    # version of it
    "erf": None,
    # guards(indices, kind): returns whether the kernels `cross_entropy`, `cross_entropies`,
    # `embedding` and `one_hot` (for floats) themselves detect that some of these indices are
    # out of range, which means that an index is below 0, or is at least the number of classes
    # or rows. `kind` is the kind of the indices' device. If `guards` returns True, then for
    # wrong indices the kernels either raise, at once or when the program next waits, or return
    # NaN, but never a finite number. The core then reads the indices only if the kernel raises,
    # to find the wrong index for the error. In blocking mode, `guards` returns True only if the
    # kernels raise at once
    "guards": None,
}
"""Functions that an adapter may have, each with the value that is used if the adapter lacks it."""

STEPS: Final = (
    # adam(rows, step, rate, betas, eps): returns a new (p, m, v) for each row (p, g, m, v): a
    # parameter p, its gradient g, the running mean m of the gradients, and the running mean v
    # of the squared gradients
    "adam",
)
"""Optional kernels for `xdevice.optim`, which has its own implementations. The kernels are called with float32
tensors on one device, and return new tensors, through which no gradient flows. `step`, the number of previous steps,
is a 0-d integer tensor on that device. `rate` is a number, or a 0-d float32 tensor. A
kernel may return NotImplemented for a case that it cannot compute."""

TRACED: Final = "TRACED"
"""The name of an optional attribute of `Backend.nn()`, which contains the names of those kernels in `STEPS` that may
also be called with the symbols of a traced function. These kernels either accept the symbols or return
NotImplemented."""
