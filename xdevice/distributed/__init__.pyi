"""The public names of this module, for type checkers and for `xdevice.base.faces`."""

from .placement import local_device as local_device
from .process_group import World as World
from .process_group import processes as processes
from .process_group import world as world
