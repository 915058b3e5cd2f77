"""The conformance suite's checks of the kernels that `xdevice.array_namespace` is made of."""

from __future__ import annotations

from typing import Any

import xdevice
from xdevice.contract import arithmetic
from xdevice.errors import UnsupportedError

from .base import Suite, in_thread


class Arithmetic(Suite):
    """An adapter may refuse a namespace by name; one that it gives is whole."""

    def test_a_namespace_is_whole_or_refused(self) -> None:
        try:
            kernels = self.adapter.namespace()
        except UnsupportedError:
            return
        missing = [name for name in (*arithmetic.KERNELS, *arithmetic.CONSTANT) if not hasattr(kernels, name)]
        assert not missing, f"namespace() lacks {', '.join(missing)}"
        self.needs_kernels()
        x = self.make([[1, 2], [3, 4]])
        in_thread(lambda: self.compute(x), self.patience)  # what it may turn on for a thread ends with that

    def compute(self, x: Any) -> None:
        try:
            xp = xdevice.array_namespace(x)
        except UnsupportedError:
            return
        made = xp.add(x, 1.5)
        assert xdevice.to_numpy(made).dtype == "float32"
        assert xdevice.to_numpy(xp.matmul(made, made)).tolist() == [[22.0, 28.0], [36.0, 46.0]]
        assert xdevice.item(xp.sum(made)) == 16.0
