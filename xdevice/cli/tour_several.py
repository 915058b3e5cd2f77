"""`xdevice tour`, second part: the steps on several devices, which are virtual if there are no GPUs.

The docstring of a step is printed as its heading. The chapter:
https://d2l.ai/chapter_computational-performance/multiple-gpus.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .tour_page import Page


def choose_devices(page: Page) -> None:
    """Choose two devices. Without GPUs they are virtual: devices of the framework, in host memory."""
    page.do("import xdevice")
    has_gpus = "gpu" in page.backend.kinds
    if page.backend.virtual and has_gpus:
        page.say("  In a fresh Python, because virtual GPUs are asked for before the framework is used.")
        page.do(f"xdevice.virtual_gpus({page.backend.virtual})")
    page.do(f"xdevice.set_backend({page.backend.name!r})")
    every = "[*xdevice.try_all_gpus(), xdevice.cpu(), xdevice.cpu()][:2]"
    page.do(f"devices = {every if has_gpus else '[xdevice.cpu(), xdevice.cpu()]'}")
    page.look("devices")
    page.look("[device.native for device in devices]")


def see_a_mismatch(page: Page) -> None:
    """Tensors on two devices: the mismatch is reported, not mended silently."""
    page.do("x, y = [xdevice.ones(2, device=device) for device in devices]")
    if page.names["devices"][0] == page.names["devices"][1]:
        page.expect("xdevice.same_device(x, y)", True)
        return
    page.expect("xdevice.same_device(x, y)", False)
    page.refuse("xdevice.check_same_device(x=x, y=y)", "DeviceMismatchError", "mismatch")


def split_a_batch(page: Page) -> None:
    """Split a batch of tensors over the two devices: parts of uneven length are allowed, and no row is lost."""
    page.do("batch = xdevice.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])")
    page.do("parts = xdevice.split_batch(batch, devices, even=False)")
    page.expect("[tuple(part.shape) for part in parts]", [(2, 2), (1, 2)])
    page.expect("[xdevice.device_of(part) for part in parts] == devices", True)


def copy_the_parameters(page: Page) -> None:
    """Copy the parameters, so that each device has its own."""
    page.do("replicas = xdevice.replicate({'w': xdevice.tensor([[1.0], [2.0]])}, devices)")
    page.expect("[xdevice.device_of(replica) for replica in replicas] == devices", True)


def take_gradients(page: Page) -> None:
    """Compute the gradient of sum(part @ w) on each device, from that device's part of the batch."""
    page.do(_LOSS)
    if page.differentiates("xdevice.grad(loss)(replicas[0], parts[0])"):
        page.do("def gradient(i):\n    return xdevice.grad(loss)(replicas[i], parts[i])")
    else:
        page.say("  This gradient is known: the sums of the columns.")
        page.do("def gradient(i):\n    return {'w': xp.reshape(xp.sum(parts[i], axis=0), (2, 1))}")
    page.do("gradients = xdevice.parallel(lambda: gradient(0), lambda: gradient(1))")
    page.expect("[xdevice.to_numpy(g['w']).tolist() for g in gradients]", [[[4], [6]], [[5], [6]]])


def sum_the_gradients(page: Page) -> None:
    """Sum the gradients: each device then has the gradient of the whole batch."""
    page.do("gradients = xdevice.all_reduce(gradients)")
    page.expect("[xdevice.to_numpy(g['w']).tolist() for g in gradients]", [[[9], [12]]] * 2)
    page.expect("[xdevice.device_of(g) for g in gradients] == devices", True)


def gather_the_batch(page: Page) -> None:
    """Join the parts of the batch again on one device."""
    page.do("whole = xdevice.gather(parts, devices[0])")
    page.expect("xdevice.to_numpy(whole).tolist()", [[1, 2], [3, 4], [5, 6]])
    page.expect("xdevice.device_of(whole) == devices[0]", True)


def exercise_4(page: Page) -> None:
    """Exercise 4: the time of two products on the two devices, one after the other, and both at once."""
    are_real = not page.backend.virtual and all(device.kind == "gpu" for device in page.names["devices"])
    size = 4000 if are_real else 500
    page.do(_TWO_PRODUCTS.format(size=size))
    page.look("timed(in_sequence)")
    page.look("timed(at_once)  # seconds")
    if not are_real:
        page.say("  Here the two share the cores of this machine, so doing both at once may gain nothing.")


_LOSS = """\
xp = xdevice.array_namespace()

def loss(replica, part):
    return xp.sum(xp.matmul(part, replica['w']))
"""

_TWO_PRODUCTS = """\
import time
xs = [xdevice.rand({size}, {size}, device=device) for device in devices]

def product(x):
    with xdevice.device_of(x):
        return x @ x

def in_sequence():
    for x in xs:
        xdevice.sync(product(x))

def at_once():
    xdevice.parallel(lambda: product(xs[0]), lambda: product(xs[1]))

def timed(work):
    work()  # the first time compiles, and wakes threads
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
"""

STEPS: Sequence[Callable[[Page], None]] = (
    choose_devices,
    see_a_mismatch,
    split_a_batch,
    copy_the_parameters,
    take_gradients,
    sum_the_gradients,
    gather_the_batch,
    exercise_4,
)
