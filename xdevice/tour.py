"""`xdevice tour`: the GPU chapter of d2l.ai, written once, run on real tensors of one backend.

Each line shown is the line that runs. The chapter: https://d2l.ai/chapter_builders-guide/use-gpu.html
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import xdevice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .contract import Backend
    from .devices import Device

LARGE, SMALL, PRODUCTS = 1500, 10, 1000


class Page:
    """Where the tour writes, and the names its lines have made so far."""

    def __init__(self, backend: Backend) -> None:
        from rich.console import Console

        self.backend = backend
        self.console = Console(highlight=False, soft_wrap=True)
        self.names: dict[str, Any] = {"xdevice": xdevice, "backend": backend}
        self.figures: dict[str, Any] = {}

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def do(self, line: str) -> None:
        """Shows a line and runs it."""
        self.say(f"  >>> {line}")
        exec(line, self.names)

    def look(self, line: str) -> Any:
        """Shows an expression and its value."""
        self.say(f"  >>> {line}")
        value = eval(line, self.names)
        for row in repr(value).splitlines():
            self.say(f"  {row}")
        return value

    def expect(self, line: str, wanted: object) -> None:
        """Shows an expression and its value, and fails unless it is what the chapter says."""
        value = self.look(line)
        if value != wanted:
            raise AssertionError(f"{line} gave {value!r}, and the chapter says {wanted!r}")


def run(backend: Backend) -> dict[str, Any]:
    """The GPU chapter on one backend; what came out, step by step, whatever fails on the way."""
    # before the framework is used, because that is when a second CPU can still be made
    other = backend.samples().other_device()
    page = Page(backend)
    page.console.rule(f"{backend.name} {backend.version}")
    page.names["device"] = device = _gpus(backend)[0] if _gpus(backend) else xdevice.cpu()
    page.names["other"] = xdevice.cpu() if device.kind == "gpu" else other
    return {
        "backend": backend.name,
        "version": backend.version,
        "devices": [str(device) for device in backend.devices()],
        "failed": walk(page, STEPS),
        **page.figures,
    }


def run_several(backend: Backend) -> list[str]:
    """The part on several devices; what failed."""
    from . import tour_several

    page = Page(backend)
    page.console.rule(f"{backend.name} {backend.version}, several devices")
    return walk(page, tour_several.STEPS)


def walk(page: Page, steps: Sequence[Callable[[Page], None]]) -> list[str]:
    """Goes through the steps, whatever fails on the way; what failed."""
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


def _gpus(backend: Backend) -> list[Device]:
    return [device for device in backend.devices() if device.kind == "gpu"]


# the chapter


def list_devices(page: Page) -> None:
    """Which devices are there?"""
    page.look("xdevice.cpu(), xdevice.gpu(), xdevice.gpu(1)")
    if page.backend.virtual and not _gpus(page.backend):
        page.say(f"  {page.backend.name} has no virtual GPUs, and whoever asks it for some gets an error.")
        return
    page.look("xdevice.num_gpus()")
    page.look("xdevice.try_gpu(), xdevice.try_gpu(10), xdevice.try_all_gpus()")
    page.look("device.native")


def query_a_device(page: Page) -> None:
    """Where is a tensor?"""
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
    """Copy: the source stays where it is."""
    target = "other" if page.names["other"] is not None else "device"
    page.do(f"Z = xdevice.copy_to(X, {target})")
    page.look("xdevice.device_of(X), xdevice.device_of(Z)")
    page.expect(f"xdevice.device_of(X) == device, xdevice.device_of(Z) == {target}, Z is X", (True, True, False))


def move_where_it_is(page: Page) -> None:
    """Move where it already is: the same object, and nothing is copied."""
    page.expect("xdevice.to_device(X, device) is X", True)


def add_on_one_device(page: Page) -> None:
    """Add two tensors on one device."""
    page.expect("xdevice.same_device(X, Y)", True)
    page.do("with device: S = X + Y")
    page.look("S")
    page.expect("xdevice.device_of(S) == device", True)


def see_a_mismatch(page: Page) -> None:
    """Two devices: the mismatch is reported, not mended in silence."""
    if page.names["other"] is None:
        page.say(f"  {page.backend.name} has one device here, so nothing can be on another.")
        return
    page.expect("xdevice.same_device(X, Z)", False)
    page.say("  >>> xdevice.check_same_device(X=X, Z=Z)")
    try:
        xdevice.check_same_device(X=page.names["X"], Z=page.names["Z"])
    except xdevice.DeviceMismatchError as error:
        page.say(f"  DeviceMismatchError: {error}")
        return
    raise AssertionError("the mismatch was not found")


def use_a_network(page: Page) -> None:
    """Put a small network on the device, run it, and see where its parameters are."""
    page.do("net = backend.samples().network(3, 1)")
    if page.names["net"] is None:
        page.say(f"  {page.backend.name} has no network classes: a dict of parameters moves the same way.")
        page.do("net = {'weight': xdevice.rand(3, 1), 'bias': xdevice.zeros(1)}")
        page.do("net = xdevice.to_device(net, device)")
        page.look("X @ net['weight'] + net['bias']")
        page.expect("{name: xdevice.device_of(x) == device for name, x in net.items()}", {"weight": True, "bias": True})
        return
    page.do("net = xdevice.to_device(net, device)")
    page.do("with device: out = net(X)")
    page.look("out")
    page.expect("xdevice.device_of(out) == device", True)
    page.look("list(backend.model_devices(net))")
    page.expect("xdevice.device_of(net) == device", True)


def exercise_1(page: Page) -> None:
    """Exercise 1: a large and a small product, on the CPU and on each GPU."""
    places = [xdevice.cpu(), *_gpus(page.backend)]
    for size in (LARGE, SMALL):
        times = {str(place): _product_time(size, place) for place in places}
        page.figures["large" if size == LARGE else "small"] = times
        page.say(f"  {size} x {size}: " + ", ".join(f"{place} {1000 * t:.3f} ms" for place, t in times.items()))


def exercise_3(page: Page) -> None:
    """Exercise 3: 1000 products of 100 x 100, their norms read one by one, or kept on the device."""
    for how, read in (("one by one", True), ("on the device", False)):
        seconds, last = _log_norms(page.names["device"], read)
        page.figures[how] = seconds
        page.say(f"  norms {how}: {seconds:.3f} s, the last is {last:.4f}")


STEPS: Sequence[Callable[[Page], None]] = (
    list_devices,
    query_a_device,
    create_on_a_device,
    copy_to_a_device,
    move_where_it_is,
    add_on_one_device,
    see_a_mismatch,
    use_a_network,
    exercise_1,
    exercise_3,
)


def _product_time(size: int, place: Device, repeats: int = 5) -> float:
    """Seconds of one product: the best of some, each waited for."""
    with place:
        x, y = xdevice.rand(size, size), xdevice.rand(size, size)
        xdevice.sync(x @ y)
        best = float("inf")
        for _ in range(repeats):
            start = time.perf_counter()
            xdevice.sync(x @ y)
            best = min(best, time.perf_counter() - start)
    return best


def _log_norms(place: Device, one_by_one: bool) -> tuple[float, float]:
    with place:
        x = xdevice.rand(100, 100)
        row, column = xdevice.ones(1, 100), xdevice.ones(100, 1)
        for _ in range(PRODUCTS // 10):  # the first ones compile, and wake threads
            xdevice.sync((row @ (x @ x) @ column) ** 0.5)
        start = time.perf_counter()
        log: list[Any] = []
        for _ in range(PRODUCTS):
            y = x @ x
            # the sum of squares by products, because the frameworks name their sums differently
            norm = (row @ (y * y) @ column) ** 0.5
            log.append(xdevice.item(norm) if one_by_one else norm)
        last = float(xdevice.item(log[-1])) if not one_by_one else log[-1]
    return time.perf_counter() - start, last


def show_table(outcomes: Sequence[dict[str, Any]]) -> None:
    """The closing table: what came out, backend by backend."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="What came out")
    table.add_column("backend", no_wrap=True)
    table.add_column("steps", overflow="fold")
    table.add_column("device")
    for heading in (
        f"{LARGE}² product",
        f"{SMALL}² product",
        f"{PRODUCTS} norms read one by one",
        "kept on the device",
    ):
        table.add_column(heading, justify="right")
    for outcome in outcomes:
        table.add_row(
            f"{outcome['backend']} {outcome['version']}",
            "[green]all[/]" if not outcome["failed"] else f"[red]not {escape('; '.join(outcome['failed']))}[/]",
            "\n".join(outcome.get("large", {})),
            _milliseconds(outcome.get("large")),
            _milliseconds(outcome.get("small")),
            _seconds(outcome.get("one by one")),
            _seconds(outcome.get("on the device")),
        )
    Console().print(table)


def _milliseconds(times: dict[str, float] | None) -> str:
    return "\n".join(f"{1000 * t:.2f} ms" for t in (times or {}).values())


def _seconds(t: float | None) -> str:
    return f"{t:.3f} s" if t is not None else "-"
