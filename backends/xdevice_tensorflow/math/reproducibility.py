"""Implements seeds and deterministic kernels on TensorFlow."""

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
    """Implements the capability `Reproducibility` for TensorFlow. `xdevice.math.contract.reproducibility` documents its
    methods."""

    def seed_generators(self, n: int) -> None:
        """Seeds the default generators of TensorFlow and Keras."""
        # `set_random_seed` is needed for the generator of Keras's own layers
        keras.utils.set_random_seed(n)
        tf.random.set_seed(n)

    @contextmanager
    def deterministic(self) -> Iterator[list[str]]:
        """Makes TensorFlow choose deterministic kernels while the block runs. Yields an empty list, because no
        operation remains nondeterministic."""
        # required before the mode is enabled, because TensorFlow has no public function that
        # disables it again
        private.require_names_for("deterministic")
        was_on = private["tensorflow.python.framework.config.is_op_determinism_enabled"]()
        tf.config.experimental.enable_op_determinism()
        try:
            yield []
        finally:
            if not was_on:
                private["tensorflow.python.framework.config.disable_op_determinism"]()
