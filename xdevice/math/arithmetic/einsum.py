"""`einsum`: sums of products of tensors whose axes are named by letters.

The frameworks disagree about which parts of the subscripts may be omitted. The core therefore completes the
subscripts: it assigns letters to the axes of `...`, and names the axes of the result. The core also computes diagonals,
and multiplies by 0-d tensors.
"""

from __future__ import annotations

import re
from string import ascii_letters
from typing import TYPE_CHECKING, Any, Final

from xdevice.errors import ArgumentError, NotATensorError, ShapeError, shown

from .checks import Checks
from .dtypes import REAL_FLOATING
from .namespace import checks_of

if TYPE_CHECKING:
    from collections.abc import Sequence

# a term consists of the letters of one operand, with at most one `...`. Subscripts consist of
# terms that are separated by commas, optionally followed by "->" and the term of the result
_TERM: Final = r"[A-Za-z]*(?:\.\.\.)?[A-Za-z]*"
_SUBSCRIPTS: Final = re.compile(rf"{_TERM}(?:,{_TERM})*(?:->{_TERM})?")


def einsum(subscripts: str, *tensors: Any) -> Any:
    """Returns the sum of products over named axes: `einsum("ij,jk->ik", a, b)` is the product of matrices.

    Experimental: it may change in a minor version.

    Args:
        subscripts: a letter for each axis, or `...` for several axes. A letter that occurs twice in an operand selects
            a diagonal. Without `->`, the result has the axes of `...`, followed by the axes whose letters occur once,
            in alphabetical order.
        tensors: tensors of floats, of the same backend and on the same device. The result has the widest dtype.

    Raises:
        ArgumentError: the subscripts are malformed, or describe a different number of tensors; or the tensors belong
            to different backends.
        ShapeError: the number of axes is wrong, or axes with the same letter differ in length (no broadcasting).
        DTypeError: a tensor does not contain real floats. NotATensorError: an operand is not a tensor.
        DeviceMismatchError: the tensors are on several devices.
        UnsupportedError: a size is unknown while a function is traced, or a third-party backend has no einsum.

    Costs 0.1 ms more than the framework's own einsum. MXNet and NumPy use loops, except for matrix products.

    Example:
        >>> xdevice.to_numpy(xdevice.math.einsum("ij,j->i", xdevice.ones(2, 3), xdevice.ones(3))).tolist()
        [3.0, 3.0]
    """
    if not tensors:
        raise NotATensorError("einsum needs at least one tensor after the subscripts")
    checks = checks_of(tensors[0], "einsum")
    if checks.kernels.einsum is None:
        raise checks.backend.unsupported("einsum", "use xp.tensordot, or sums of products")
    tensors = tuple([checks.checked_tensor(x, "einsum") for x in tensors])
    operands = checks.operands_on_one_device("einsum", REAL_FLOATING, *tensors)
    shapes = [checks.known_shape(x, "einsum") for x in operands]
    terms, result = _explicit_subscripts(subscripts, shapes)
    # the operands, reduced to their diagonals, so that each letter occurs only once
    diagonals = [_diagonal(checks, x, term) for x, term in zip(operands, terms, strict=True)]
    names = ["".join(dict.fromkeys(term)) for term in terms]
    product = None
    # the frameworks treat 0-d operands differently, so these operands are left out
    # here, and multiplied below
    if any(names):
        factors = [x for x, name in zip(diagonals, names, strict=True) if name]
        product = checks.kernels.einsum(f"{','.join(filter(None, names))}->{result}", *factors)
    for x, name in zip(diagonals, names, strict=True):
        if not name:
            # `product` is None if no operand has axes. The first operand is then copied, so that the
            # result is a new tensor
            product = (
                checks.kernels.copy(x)
                if product is None
                else checks.kernels.multiply(product, x)
            )
    return product


def _explicit_subscripts(
    subscripts: Any, shapes: Sequence[tuple[int, ...]]
) -> tuple[list[str], str]:
    """Returns the terms of the operands and the term of the result, with letters in place of each `...`. `subscripts`
    is the user's argument, and `shapes` contains the shape of each operand. Raises `ArgumentError` if the subscripts
    are malformed or describe a different number of tensors, and `ShapeError` if the subscripts do not match the
    shapes."""
    # the type is tested too, because "" is valid: it describes one 0-d tensor
    text = subscripts.replace(" ", "") if isinstance(subscripts, str) else ""
    if not isinstance(subscripts, str) or not _SUBSCRIPTS.fullmatch(text):
        raise ArgumentError(
            f'einsum expects subscripts such as "ij,jk->ik", not {shown(subscripts)}'
        )
    inputs, arrow, result = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(shapes):
        raise ArgumentError(
            f"einsum: {text!r} describes {len(terms)} tensors, but the call has {len(shapes)}; write one term for "
            "each tensor, with commas between them"
        )
    # the axes of `...` get letters that do not occur in the subscripts
    unused_letters = [letter for letter in ascii_letters if letter not in text]
    ellipsis_axes = _count_ellipsis_axes(text, terms, shapes)
    most_ellipsis_axes = max(ellipsis_axes)
    if most_ellipsis_axes > len(unused_letters):
        raise ArgumentError(
            f"einsum: there are not enough letters to name all the axes in {text!r}"
        )
    # shapes are aligned at their last axes, so an operand with fewer axes in `...` gets the
    # last letters
    ellipsis_letters = "".join(unused_letters[:most_ellipsis_axes])
    terms = [
        term.replace("...", ellipsis_letters[most_ellipsis_axes - count :])
        for term, count in zip(terms, ellipsis_axes, strict=True)
    ]
    all_letters = "".join(terms)
    # without "->", the result has the axes of `...`, followed by the letters that occur once,
    # in alphabetical order
    if not arrow:
        letters = sorted(set(all_letters) - set(ellipsis_letters))
        result = ellipsis_letters + "".join(
            [letter for letter in letters if all_letters.count(letter) == 1]
        )
    elif most_ellipsis_axes and "..." not in result:
        raise ArgumentError(
            f"einsum: the result in {text!r} must contain '...', because a term on the left contains '...'"
        )
    result = result.replace("...", ellipsis_letters)
    if len(set(result)) != len(result) or not set(result) <= set(all_letters):
        raise ArgumentError(
            f"einsum: the result in {text!r} contains a letter twice, or a letter that no term on the left contains"
        )
    _require_lengths(text, terms, shapes)
    return terms, result


def _count_ellipsis_axes(
    text: str, terms: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> list[int]:
    """Returns, for each operand, the number of axes that `...` stands for, which is 0 for a term without `...`.
    `terms` contains the term of each operand, `shapes` contains its shape, and `text` is the user's subscripts, which
    the error quotes. Raises `ShapeError` if a term does not match its shape."""
    counts = []
    for term, shape in zip(terms, shapes, strict=True):
        count = len(shape) - len(term.replace("...", ""))
        if count < 0 or (count and "..." not in term):
            raise ShapeError(
                f"einsum: {term!r} in {text!r} does not match the axes of a tensor of shape {shape}; write a letter "
                "for each axis, or '...' for several"
            )
        counts.append(count)
    return counts


def _require_lengths(
    text: str, terms: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> None:
    """Raises `ShapeError` if axes with the same letter differ in length, even if one of the
    lengths is 1, because only some frameworks broadcast such an axis. `terms` contains the letters of each operand,
    `shapes` contains the lengths of its axes, and `text` is the user's subscripts, which the error quotes."""
    lengths: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, length in zip(term, shape, strict=True):
            if lengths.setdefault(letter, length) != length:
                # a letter that was assigned to an axis of `...` does not occur in the user's
                # subscripts
                name = repr(letter) if letter in text else "..."
                raise ShapeError(
                    f"einsum: {name} in {text!r} has the lengths {lengths[letter]} and {length} in the shapes "
                    f"{list(shapes)}; axes with the same letter must be equally long"
                )


def _diagonal(checks: Checks, x: Any, term: str) -> Any:
    """Returns `x` with only one axis for each letter: axes with the same letter are replaced by their diagonal. If no
    letter occurs twice, returns `x` itself. `term` contains the letter of each axis."""
    name = "".join(dict.fromkeys(term))
    if name == term:
        return x
    import numpy as np

    # NumPy's einsum computes the diagonal of an array that contains the positions of all
    # elements
    positions = np.arange(np.prod(x.shape, dtype="int64")).reshape(tuple(x.shape))
    return checks.take_flat(x, np.einsum(f"{term}->{name}", positions))
