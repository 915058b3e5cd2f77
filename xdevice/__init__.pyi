"""The public names of xdevice, and where each is: written here once, for type checkers and for `__init__.py`.

A name that is not shown is no part of `__all__`: errors that are caught by their parents' names, and `__version__`.
"""

from . import errors as errors  # not shown
from . import native as native
from . import nn as nn
from . import optim as optim
from . import random as random
from .base.version import __version__ as __version__  # not shown
from .containers.trees import register as register
from .core.scopes import current_device as current_device
from .core.scopes import set_device as set_device
from .core.selection import backend as backend
from .core.selection import backends as backends
from .core.selection import set_backend as set_backend
from .core.selection import use as use
from .distributed.local_device import local_device as local_device
from .distributed.world import World as World
from .distributed.world import processes as processes
from .distributed.world import world as world
from .errors import ArgumentError as ArgumentError  # not shown
from .errors import BackendImportError as BackendImportError
from .errors import BackendNotFoundError as BackendNotFoundError
from .errors import CaptureError as CaptureError
from .errors import CollectiveMismatchError as CollectiveMismatchError
from .errors import ContainerError as ContainerError
from .errors import ContractError as ContractError  # not shown
from .errors import DeviceError as DeviceError
from .errors import DeviceMismatchError as DeviceMismatchError
from .errors import DeviceNotFoundError as DeviceNotFoundError
from .errors import DTypeError as DTypeError
from .errors import FileFormatError as FileFormatError
from .errors import FilePathError as FilePathError  # not shown
from .errors import LaunchError as LaunchError
from .errors import MissingFileError as MissingFileError  # not shown
from .errors import NotATensorError as NotATensorError
from .errors import NotBuiltError as NotBuiltError
from .errors import ParityError as ParityError
from .errors import PeerError as PeerError
from .errors import RecordingError as RecordingError  # not shown
from .errors import ScopeError as ScopeError  # not shown
from .errors import SettingError as SettingError  # not shown
from .errors import ShapeError as ShapeError
from .errors import SharingError as SharingError  # not shown
from .errors import StateError as StateError  # not shown
from .errors import TimingError as TimingError  # not shown
from .errors import TransferError as TransferError  # not shown
from .errors import UnsupportedError as UnsupportedError
from .errors import XDeviceError as XDeviceError
from .execution.blocking import blocking as blocking
from .execution.streams import Event as Event
from .execution.streams import Stream as Stream
from .execution.timing import Benchmark as Benchmark
from .execution.timing import Timer as Timer
from .execution.timing import measure as measure
from .execution.waiting import sync as sync
from .math.arithmetic.einsum import einsum as einsum
from .math.arithmetic.gradients import grad as grad
from .math.arithmetic.gradients import stop_gradient as stop_gradient
from .math.arithmetic.gradients import value_and_grad as value_and_grad
from .math.arithmetic.indexing import at as at
from .math.arithmetic.indexing import top_k as top_k
from .math.arithmetic.namespace import array_namespace as array_namespace
from .math.arithmetic.standard_array import standard_array as standard_array
from .math.arithmetic.updating import update as update
from .math.batches import batches as batches
from .math.compiling.programs import compile as compile
from .performance.graphs import Graph as Graph
from .performance.graphs import capture as capture
from .performance.parallel import close_pool as close_pool
from .performance.parallel import parallel as parallel
from .performance.prefetch import prefetch as prefetch
from .performance.transfers import TransferWarning as TransferWarning
from .performance.transfers import transfers as transfers
from .replicas.spread import all_reduce as all_reduce
from .replicas.spread import broadcast as broadcast
from .replicas.spread import gather as gather
from .replicas.spread import replicate as replicate
from .replicas.spread import split_batch as split_batch
from .tensors.conversion import convert as convert
from .tensors.creation import item as item
from .tensors.creation import ones as ones
from .tensors.creation import rand as rand
from .tensors.creation import supports as supports
from .tensors.creation import tensor as tensor
from .tensors.creation import to_numpy as to_numpy
from .tensors.creation import zeros as zeros
from .tensors.memory import free_pinned as free_pinned
from .tensors.memory import memory as memory
from .tensors.memory import reset_peak as reset_peak
from .tensors.verbs import Device as Device
from .tensors.verbs import check_same_device as check_same_device
from .tensors.verbs import copy_to as copy_to
from .tensors.verbs import cpu as cpu
from .tensors.verbs import device as device
from .tensors.verbs import device_of as device_of
from .tensors.verbs import gpu as gpu
from .tensors.verbs import num_gpus as num_gpus
from .tensors.verbs import same_device as same_device
from .tensors.verbs import to_device as to_device
from .tensors.verbs import try_all_gpus as try_all_gpus
from .tensors.verbs import try_gpu as try_gpu
from .twins.models.converting import convert_state as convert_state
from .twins.models.optimizer_states import compare_optimizers as compare_optimizers
from .twins.models.optimizer_states import convert_optimizer as convert_optimizer
from .twins.models.state import State as State
from .twins.models.state import load_state as load_state
from .twins.parity.comparing import assert_parity as assert_parity
from .twins.parity.comparing import compare as compare
from .twins.parity.comparison import Comparison as Comparison
from .twins.parity.recording import record as record
from .twins.tracing.traces import Trace as Trace
from .twins.tracing.traces import trace as trace
from .twins.weights.files import load as load
from .twins.weights.files import save as save
from .virtual.gpus import virtual_gpus as virtual_gpus
