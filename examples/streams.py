"""Streams and events: two branches of a network side by side on one device, as one script for every framework.

    XDEVICE_BACKEND=torch python examples/streams.py

A stream is a queue of work on one device. Work in one stream runs in order; only `wait` orders the work of two.
PyTorch and Paddle have streams on GPUs. Elsewhere this script shows what `Stream` says, and what to use instead.
A real GPU wants larger matrices to work on:

    XDEVICE_BACKEND=torch python examples/streams.py 2000

More on streams: docs/reference/async.md
"""

import sys

import xdevice
from xdevice import nn

print(f"This is {xdevice.backend().name} {xdevice.backend().version}.")
device = xdevice.try_gpu()
xp = xdevice.array_namespace()
size = int(sys.argv[1]) if len(sys.argv) > 1 else 200

x = xdevice.random.uniform(size, size, device=device)
left, right = (
    xdevice.random.normal(size, size, scale=size**-0.5, device=device) for _ in range(2)
)


def branch(x, weight):
    for _ in range(20):
        x = nn.relu(xp.matmul(x, weight))
    return x


# One queue: the right branch begins when the left one is done.
# the first time compiles, and wakes threads
xdevice.sync(xp.add(branch(x, left), branch(x, right)))
with xdevice.Benchmark("one after the other"):
    expected = xp.add(branch(x, left), branch(x, right))

try:
    one, two = xdevice.accelerator.Stream(device), xdevice.accelerator.Stream(device)
except xdevice.errors.UnsupportedError as error:
    # No streams here. Threads run the branches side by side; what they return is ready for use.
    print(f"{type(error).__name__}: {error}")
    with xdevice.Benchmark("two tasks"):
        a, b = xdevice.parallel.run(lambda: branch(x, left), lambda: branch(x, right))
        joined = xp.add(a, b)
else:
    main = xdevice.accelerator.Stream.current(device)
    start, end = xdevice.accelerator.Event(), xdevice.accelerator.Event()
    with xdevice.Benchmark("two streams"):
        # The main stream made x and the weights, so both streams wait for it.
        one.wait(main)
        two.wait(main)
        with one:
            start.record()
            a = branch(x, left)
            end.record()
        with two:
            b = branch(x, right)
        # The main stream adds what they make, so it waits for both; the host goes on all the while. Neither a nor b
        # was made on the main stream: keep them until it has read them, even if their names go before.
        main.wait(end)
        main.wait(two)
        main.keep([a, b])
        joined = xp.add(a, b)
    print(f"by events, the left branch took {start.elapsed(end):.4f} sec on the device")

# Without one of the waits this might fail, or not, from one run to the next.
xdevice.assert_parity(joined, expected)
print("the same result: True")
