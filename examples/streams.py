"""Streams and events: run two branches of a network side by side on one device, on every
framework.

    XDEVICE_BACKEND=torch python examples/streams.py

A stream is a queue of work on one device. The work in one stream runs in order. To order the
work of two streams, use `wait`. PyTorch and Paddle have streams on GPUs. Without streams, this
script prints the error that `Stream` raises, and runs the branches in threads. For a real GPU,
use larger matrices:

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


# With one queue, the right branch begins when the left one is done.
# The first call compiles code and starts threads.
xdevice.sync(xp.add(branch(x, left), branch(x, right)))
with xdevice.Benchmark("one after the other"):
    expected = xp.add(branch(x, left), branch(x, right))

try:
    one, two = xdevice.accelerator.Stream(device), xdevice.accelerator.Stream(device)
except xdevice.errors.UnsupportedError as error:
    # There are no streams. Threads run the branches side by side, and their results are ready
    # to use.
    print(f"{type(error).__name__}: {error}")
    with xdevice.Benchmark("two tasks"):
        a, b = xdevice.parallel.run(lambda: branch(x, left), lambda: branch(x, right))
        joined = xp.add(a, b)
else:
    main = xdevice.accelerator.Stream.current(device)
    start, end = xdevice.accelerator.Event(), xdevice.accelerator.Event()
    with xdevice.Benchmark("two streams"):
        # x and the weights were created on the main stream, so both streams wait for it.
        one.wait(main)
        two.wait(main)
        with one:
            start.record()
            a = branch(x, left)
            end.record()
        with two:
            b = branch(x, right)
        # The main stream adds the results of both streams, so it waits for both. The host does
        # not wait. a and b were not created on the main stream, so keep their memory until the
        # main stream has read them, even if the variables are deleted earlier.
        main.wait(end)
        main.wait(two)
        main.keep([a, b])
        joined = xp.add(a, b)
    print(f"by events, the left branch took {start.elapsed(end):.4f} sec on the device")

# If one of the waits were missing, this might fail in one run and pass in the next.
xdevice.assert_parity(joined, expected)
print("the same result: True")
