"""Facts about the built-in backends that are needed before the backends are loaded. `import xdevice` imports this
module, so this module must import little."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final


class Framework:
    """The facts about a built-in backend that are needed before its adapter is loaded."""

    def __init__(
        self,
        name: str,
        aliases: tuple[str, ...],
        modules: tuple[str, ...],
        install: str,
        brings: tuple[str, ...] = (),
        is_fragile: bool = False,
    ) -> None:
        self.name = name
        self.aliases = aliases
        self.modules = modules
        """The top-level modules whose types belong to the backend. The first of these modules is the framework
        itself."""
        self.install = install
        """The command that installs the framework."""
        self.brings = brings
        """The backends whose frameworks this backend's framework imports, if they are installed. So an import of those
        frameworks does not show that the user has chosen them."""
        self.is_fragile = is_fragile
        """Whether an import of the framework without xdevice's help may fail or leave the framework broken, even if no
        other framework is imported."""


KNOWN: Final = (
    Framework("torch", ("pytorch",), ("torch",), "pip install torch"),
    Framework(
        "tensorflow",
        ("tf",),
        ("tensorflow", "keras"),
        "pip install tensorflow",
        # TensorFlow imports JAX, if it is installed
        brings=("jax",),
    ),
    Framework(
        "paddle", ("paddlepaddle",), ("paddle",), "pip install paddlepaddle", is_fragile=True
    ),
    Framework(
        "mxnet",
        ("mx",),
        ("mxnet",),
        "pip install 'mxnet<2' 'numpy<2', on Linux and Python 3.12 or older",
        is_fragile=True,
    ),
    Framework("jax", (), ("jax", "jaxlib"), "pip install jax"),
    Framework("numpy", ("np",), ("numpy",), "pip install numpy"),
)
"""The built-in backends, in the order in which they are tried if the program does not choose a backend. NumPy must be
the last, because code that excludes NumPy uses `KNOWN[:-1]`."""

GUESTS: Final = {"keras": ("keras.config", "backend")}
"""For each library that runs on one of several frameworks, the module and the name of the function that returns the
name of the framework in use."""

LIBRARIES: Final = {"flax": "jax", "equinox": "jax"}
"""For each library whose models do not inherit from the types of its framework, the backend of that framework."""

wanted: Final[set[str]] = set()
"""The names of the backends that xdevice itself is loading, or has loaded."""


def find(name: str) -> Framework | None:
    """Returns the `Framework` of the built-in backend with this name; None for any other name, including an alias."""
    return next((framework for framework in KNOWN if framework.name == name), None)


def list_imported() -> list[Framework]:
    """Returns the `Framework` of each framework that has been imported, except NumPy, because every framework imports
    NumPy."""
    return [
        framework
        # NumPy is the last of `KNOWN`
        for framework in KNOWN[:-1]
        # the value None blocks the import of a module, so a module with this value is not imported; nor is
        # a framework in whose place another package was imported
        if sys.modules.get(framework.modules[0]) is not None
        and stand_in(framework.modules[0]) is None
    ]


def stand_in(module: str) -> str | None:
    """Returns the name of the package that was imported in place of the framework's module called `module`: for
    example, "paddle" for "torch" after `paddle.enable_compat()`. Returns None if the module is the framework's own, or
    is not imported."""
    # the file of a stand-in is in the folder of the package that provides it
    file = getattr(sys.modules.get(module), "__file__", None)
    folder = os.path.basename(os.path.dirname(file)) if file else module
    return None if folder == module else folder
