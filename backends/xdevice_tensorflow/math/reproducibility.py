"""Seeds and deterministic kernels on TensorFlow."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from xdevice.math.contract.reproducibility import Reproducibility
from xdevice_tensorflow.private import private

if TYPE_CHECKING:
    from collections.abc import Iterator


class TensorflowReproducibility(Reproducibility):
    """The capability `Reproducibility` on TensorFlow; its methods are documented in
    `xdevice.math.contract.reproducibility`."""

    def seed_generators(self, n: int) -> None:
        """Seeds the default generators of TensorFlow and Keras."""
        # TensorFlow's generators, and that of Keras's own layers
        keras.utils.set_random_seed(n)
        tf.random.set_seed(n)

    @contextmanager
    def deterministic(self) -> Iterator[list[str]]:
        """A block in which TensorFlow chooses deterministic kernels. Yields an empty list,
        because nothing stays nondeterministic."""
        # checked before it is switched on: TensorFlow has no public way to switch it off again
        private.require("deterministic")
        was_on = private["tensorflow.python.framework.config.is_op_determinism_enabled"]()
        tf.config.experimental.enable_op_determinism()
        try:
            yield []
        finally:
            if not was_on:
                private["tensorflow.python.framework.config.disable_op_determinism"]()
