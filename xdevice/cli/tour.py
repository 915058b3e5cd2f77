"""`xdevice tour`: the steps of the GPU chapter of d2l.ai, written once for all backends, run on one.

The tour runs exactly the lines that it shows; pasted into a fresh Python they run too. The docstring of a step is
printed as its heading. The chapter: https://d2l.ai/chapter_builders-guide/use-gpu.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xdevice

from .tour_page import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xdevice.contract import Backend

LARGE, SMALL, PRODUCTS = 1500, 10, 1000


def run(backend: Backend) -> dict[str, Any]:
    """Runs the GPU chapter on one backend. Returns the backend's version and devices, the steps that failed, and the
    times."""
    page = Page(backend)
    page.console.rule(f"{backend.name} {backend.version}")
    return {
        "backend": backend.name,
        "version": backend.version,
        "devices": [str(device) for device in backend.devices()],
        "failed": walk(page, STEPS),
        **page.figures,
    }


def run_several(backend: Backend) -> list[str]:
    """Runs the part of the tour on several devices. Returns the steps that failed."""
    from . import tour_several

    page = Page(backend)
    page.console.rule(f"{backend.name} {backend.version}, several devices")
    return walk(page, tour_several.STEPS)


def walk(page: Page, steps: Sequence[Callable[[Page], None]]) -> list[str]:
    """Runs all steps, also after one has failed. Returns the steps that failed, with their errors."""
    failed = []
    with xdevice.use(page.backend):
        for number, step in enumerate(steps, 1):
            page.say(f"\n{number}. {step.__doc__}")
            try:
                step(page)
            except Exception as error:
                page.say(f"  FAILED: {type(error).__name__}: {error}")
                failed.append(f"{step.__name__}: {type(error).__name__}: {error}")
    page.say("")
    return failed


# the chapter


def choose_a_device(page: Page) -> None:
    """Choose a framework, and a device: the GPU if there is one, else the CPU."""
    page.do(f"import xdevice\nxdevice.set_backend({page.backend.name!r})")
    if page.backend.virtual and "gpu" not in page.backend.kinds:
        page.say(f"  {page.backend.name} has no virtual GPUs, and asking it for some is an error.")
        page.do("device = xdevice.cpu()")
    else:
        page.do("device = xdevice.try_gpu()")
    page.look("device")


def list_devices(page: Page) -> None:
    """Which devices are there?"""
    page.look("xdevice.cpu(), xdevice.gpu(), xdevice.gpu(1)")
    if not page.backend.virtual or "gpu" in page.backend.kinds:
        page.look("xdevice.num_gpus()")
        page.look("xdevice.try_gpu(), xdevice.try_gpu(10), xdevice.try_all_gpus()")
    page.look("device.native")


def query_a_device(page: Page) -> None:
    """Where is a tensor? Ask for its device."""
    page.do("x = xdevice.tensor([1, 2, 3])")
    page.expect("xdevice.device_of(x)", xdevice.cpu())


def create_on_a_device(page: Page) -> None:
    """Make a tensor on a device."""
    page.do("X = xdevice.ones(2, 3, device=device)")
    page.look("X")
    page.expect("xdevice.device_of(X) == device", True)
    page.do("Y = xdevice.rand(2, 3, device=device)")
    page.look("xdevice.to_numpy(Y).round(2)")


def copy_to_a_device(page: Page) -> None:
    """Copy a tensor to another device: the tensor itself stays where it is."""
    page.do("Z = xdevice.copy_to(X, xdevice.cpu())")
    page.look("xdevice.device_of(X), xdevice.device_of(Z)")
    page.expect("xdevice.device_of(X) == device, xdevice.device_of(Z) == xdevice.cpu(), Z is X", (True, True, False))


def move_where_it_is(page: Page) -> None:
    """Move a tensor to the device where it already is: the same object comes back, and nothing is copied."""
    page.expect("xdevice.to_device(X, device) is X", True)


def add_on_one_device(page: Page) -> None:
    """Add two tensors on one device."""
    page.expect("xdevice.same_device(X, Y)", True)
    page.do("with device:\n    S = X + Y")
    page.look("S")
    page.expect("xdevice.device_of(S) == device", True)


def see_a_mismatch(page: Page) -> None:
    """Two tensors on two devices: the mismatch is reported, not mended silently."""
    if page.names["device"] == xdevice.cpu():
        page.say(f"  {page.backend.name} computes on one device here; the part on several devices shows it.")
        return
    page.expect("xdevice.same_device(X, Z)", False)
    page.refuse("xdevice.check_same_device(X=X, Z=Z)", "DeviceMismatchError", "mismatch")


def use_a_network(page: Page) -> None:
    """Put a small network on the device, run it, and see where its parameters are."""
    page.say("  A model of the framework's own classes moves by the same call.")
    page.do(_NETWORK)
    page.look("network(net, X)")
    page.expect("xdevice.device_of(network(net, X)) == device", True)
    page.expect("{name: xdevice.device_of(x) == device for name, x in net.items()}", {"weight": True, "bias": True})


def train_the_network(page: Page) -> None:
    """Compute a loss and its gradients, and take a step of training: the same code for every framework."""
    page.do(_LOSS)
    if not page.differentiates("xdevice.value_and_grad(loss)(net, X, T)"):
        return
    page.do("value, gradients = xdevice.value_and_grad(loss)(net, X, T)")
    page.look("gradients")
    page.expect("xdevice.device_of(gradients) == device", True)
    page.do("net = xdevice.update(net, gradients, lambda p, g: p - 0.1 * g)")
    page.look("xdevice.item(value), xdevice.item(loss(net, X, T))")
    page.expect("xdevice.item(loss(net, X, T)) < xdevice.item(value)", True)


def exercise_1(page: Page) -> None:
    """Exercise 1: the times of a large and of a small matrix product, on the CPU and on the device."""
    page.do(_PRODUCT_TIME)
    page.do("places = list(dict.fromkeys([xdevice.cpu(), device]))")
    for size, figure in ((LARGE, "large"), (SMALL, "small")):
        times = page.look(f"{{str(place): round(product_time({size}, place), 6) for place in places}}  # seconds")
        page.figures[figure] = times


def exercise_2(page: Page) -> None:
    """Exercise 2: save the network's parameters, read them back, and compute with others, all on the device."""
    page.do("import os, tempfile\npath = os.path.join(tempfile.mkdtemp(), 'net.safetensors')")
    page.do("xdevice.save(path, net)\nread = xdevice.load(path, device=device)")
    page.look("read")
    page.do("ones = {name: xdevice.ones(*x.shape, device=device) for name, x in read.items()}")
    page.expect("xdevice.device_of(read) == xdevice.device_of(ones) == device", True)
    wanted = [[4.0], [4.0]]
    page.expect("xdevice.to_numpy(network(ones, X)).tolist()  # 1 + 1 + 1 of the weights, and 1 of the bias", wanted)


def exercise_3(page: Page) -> None:
    """Exercise 3: compute the norms of 1000 products of 100 x 100 matrices, read one by one, or kept on the device."""
    page.do(_NORMS)
    first, second = page.look("timed(one_by_one)"), page.look("timed(kept)  # seconds, and the last norm")
    page.figures["one by one"], page.figures["on the device"] = first[0], second[0]
    if abs(first[1] - second[1]) > 1e-4 * abs(second[1]):
        raise AssertionError(f"the same products gave the norms {first[1]} and {second[1]}")


STEPS: Sequence[Callable[[Page], None]] = (
    choose_a_device,
    list_devices,
    query_a_device,
    create_on_a_device,
    copy_to_a_device,
    move_where_it_is,
    add_on_one_device,
    see_a_mismatch,
    use_a_network,
    train_the_network,
    exercise_1,
    exercise_2,
    exercise_3,
)


_NETWORK = """\
xp = xdevice.array_namespace()
net = {'weight': xdevice.random.normal(3, 1), 'bias': xdevice.zeros(1)}
net = xdevice.to_device(net, device)

def network(net, X):
    return xp.add(xp.matmul(X, net['weight']), net['bias'])
"""

_LOSS = """\
T = 10 * xdevice.ones(2, 1, device=device)

def loss(net, X, T):
    return xp.mean(xp.square(network(net, X) - T))
"""

_PRODUCT_TIME = """\
import time

def product_time(size, place):
    with place:
        a, b = xdevice.rand(size, size), xdevice.rand(size, size)
        xdevice.sync(a @ b)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            xdevice.sync(a @ b)  # work on a GPU is asynchronous: wait, then look at the clock
            times.append(time.perf_counter() - start)
    return min(times)
"""

_NORMS = f"""\
import time
x = xdevice.rand(100, 100, device=device)
xp = xdevice.array_namespace(x)

def norm(y):
    return xp.sqrt(xp.sum(xp.square(y)))

def one_by_one():
    return [xdevice.item(norm(x @ x)) for _ in range({PRODUCTS})][-1]

def kept():
    return xdevice.item([norm(x @ x) for _ in range({PRODUCTS})][-1])

def timed(work):
    with device:
        xdevice.sync(norm(x @ x))  # the first one compiles, and wakes threads
        start = time.perf_counter()
        last = work()
        return time.perf_counter() - start, last
"""
