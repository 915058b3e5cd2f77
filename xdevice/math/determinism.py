"""`deterministic`: a block in which frameworks use kernels that produce the same bits in each run."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from xdevice.core import registry, selection

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def deterministic() -> Iterator[list[str]]:
    """Opens a block, `with deterministic():`, in which the frameworks choose kernels that produce the same bits in
    each run.

    Experimental: it may change in a minor version.

    The block applies to the selected backend and to every other loaded backend. `with deterministic() as lacking:`
    assigns a list of strings to `lacking`. Each string describes something that stays nondeterministic because a
    backend cannot change it now, such as a setting that the framework reads only when it starts. At the end of the
    block, and also after an error, the frameworks' former settings are restored. The settings apply to the whole
    process, including other threads. Also seed the random numbers, with `xdevice.random.seed_all`.

    | backend | set in the block |
    |---|---|
    | torch | `torch.use_deterministic_algorithms`, cuDNN's `deterministic` and `benchmark` |
    | tensorflow | `enable_op_determinism`; it needs a seed for random operations |
    | paddle | `FLAGS_cudnn_deterministic`, `FLAGS_embedding_deterministic`, in a build for GPUs |
    | mxnet | `MXNET_ENFORCE_DETERMINISM` |
    | jax | nothing: XLA reads `--xla_gpu_deterministic_ops=true` in XLA_FLAGS when it starts |
    | numpy | nothing: it is deterministic |

    The settings were tested only on CPUs, not on GPUs. On CPUs, these frameworks produce the same bits even without
    the settings. If an operation has no deterministic kernel, its framework decides what happens.

    Raises:
        UnsupportedError: a loaded third-party backend has no deterministic kernels.

    Example:
        >>> with xdevice.use_backend("numpy"), xdevice.math.deterministic():
        ...     y = xdevice.ones(2) + 1
    """
    # a dict serves as an ordered set, which removes duplicates: the selected backend is usually
    # among the loaded backends
    backends = dict.fromkeys((selection.current(), *registry.list_loaded()))
    with ExitStack() as scopes:
        lines = {
            backend.name: scopes.enter_context(backend.deterministic()) for backend in backends
        }
        yield [f"{name}: {line}" for name, lacking in lines.items() for line in lacking]
