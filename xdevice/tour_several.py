"""`xdevice tour`, second part: several devices, virtual ones where there are no real ones.

The chapter: https://d2l.ai/chapter_computational-performance/multiple-gpus.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import xdevice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .contract import Backend
    from .devices import Device
    from .tour import Page


def two_devices(backend: Backend) -> list[Device]:
    """Two GPUs; else the GPU and the CPU; else the CPU twice, which the verbs take too."""
    gpus = [device for device in backend.devices() if device.kind == "gpu"]
    return [*gpus, xdevice.cpu(), xdevice.cpu()][:2]


def choose_devices(page: Page) -> None:
    """Two devices. Without GPUs they are virtual: devices of the framework, in host memory."""
    page.names["devices"] = two_devices(page.backend)
    page.look("devices")
    page.look("[device.native for device in devices]")


def split_a_batch(page: Page) -> None:
    """Split a batch over them: uneven is fine, and nothing is lost."""
    page.do("batch = xdevice.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])")
    page.do("parts = xdevice.split_batch(batch, devices, even=False)")
    page.expect("[tuple(part.shape) for part in parts]", [(2, 2), (1, 2)])
    page.expect("[xdevice.device_of(part) for part in parts] == devices", True)


def copy_the_parameters(page: Page) -> None:
    """Parameters of their own on each device."""
    page.do("replicas = xdevice.replicate({'w': xdevice.tensor([[1.0], [2.0]])}, devices)")
    page.expect("[xdevice.device_of(replica) for replica in replicas] == devices", True)


def take_gradients(page: Page) -> None:
    """The gradient of sum(part @ w) on each device, of its own part."""
    page.do("def gradient(part, w): return backend.samples().gradient(lambda v: part @ v, w)")
    if page.look("gradient(parts[0], replicas[0]['w'])") is None:
        page.say(f"  {page.backend.name} has no gradients; this one is known: the sums of the columns.")
        page.do("def gradient(part, w): return part.sum(axis=0).reshape(2, 1)")
    page.do("def task(i): return xdevice.to_device(gradient(parts[i], replicas[i]['w']), devices[i])")
    page.do("gradients = xdevice.parallel(lambda: task(0), lambda: task(1))")
    page.expect("[xdevice.to_numpy(g).ravel().tolist() for g in gradients]", [[4, 6], [5, 6]])


def sum_the_gradients(page: Page) -> None:
    """Sum them: each device then has the gradient of the whole batch."""
    page.do("gradients = xdevice.all_reduce(gradients)")
    page.expect("[xdevice.to_numpy(g).ravel().tolist() for g in gradients]", [[9, 12]] * 2)
    page.expect("[xdevice.device_of(g) for g in gradients] == devices", True)


def gather_the_batch(page: Page) -> None:
    """And the parts of the batch, joined again on one device."""
    page.do("whole = xdevice.gather(parts, devices[0])")
    page.expect("xdevice.to_numpy(whole).tolist()", [[1, 2], [3, 4], [5, 6]])
    page.expect("xdevice.device_of(whole) == devices[0]", True)


STEPS: Sequence[Callable[[Page], None]] = (
    choose_devices,
    split_a_batch,
    copy_the_parameters,
    take_gradients,
    sum_the_gradients,
    gather_the_batch,
)
