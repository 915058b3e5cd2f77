"""Finds out whether TensorFlow's runtime has started, and how it names this process."""

from __future__ import annotations

from typing import Final

import tensorflow as tf

from .private import private

HERE: Final = "/job:localhost/replica:0/task:0/device:"
"""The beginning of TensorFlow's long names of devices in a process that is not in a cluster."""
# whether this TensorFlow has the private names that tell whether it has started
_KNOWS = not private.absent_names_for("waiting")
_context = private["tensorflow.python.eager.context.context"]
_initialized = private.field("tensorflow.python.eager.context.Context._initialized")


def is_started() -> bool:
    """Whether TensorFlow's runtime has started. After the start, its devices can no longer change. Also returns True if
    this version of TensorFlow lacks the private names that are needed to find out."""
    return not _KNOWS or bool(_initialized(_context()))


def address() -> str:
    """Returns TensorFlow's name of this process: "/job:localhost/replica:0/task:0" or, in a cluster, a name that
    contains the process's job in the cluster."""
    # `init_scope` leaves any tf.function, in which a tensor would have no device
    with tf.init_scope(), tf.device("/CPU:0"):
        # not `backing_device`, which contains "localhost" even in a cluster
        return str(tf.constant(0).device).rpartition("/device:")[0]
