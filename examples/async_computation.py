"""Asynchronous computation: the chapter of d2l.ai as one script for every framework.

    XDEVICE_BACKEND=mxnet python examples/async_computation.py

The chapter: https://d2l.ai/chapter_computational-performance/async-computation.html
"""

import time

import xdevice

print(f"This is {xdevice.backend().name} {xdevice.backend().version}.")
device = xdevice.try_gpu()
xp = xdevice.array_namespace()
a = xdevice.random.uniform(1000, 1000, device=device)
xdevice.sync(a @ a)  # the first product also loads and compiles code

# A framework may pass the work to another thread or to a GPU, and continue. Without a wait, the
# clock shows only how long it took to pass on the work.
start = time.perf_counter()
for _ in range(10):
    b = a @ a
print(f"without waiting: {time.perf_counter() - start:.4f} sec")
xdevice.sync()

# Benchmark waits before it reads the clock, at the start and at the end of the block.
with xdevice.Benchmark("with waiting"):
    for _ in range(10):
        b = a @ a

# Reading a value waits too, because the value has to be computed first.
with xdevice.Benchmark("reading every result"):
    for _ in range(10):
        xdevice.item(xp.mean(a @ a))
with xdevice.Benchmark("reading the last result"):
    for _ in range(10):
        mean = xp.mean(a @ a)
    xdevice.item(mean)

# In blocking mode every operation completes before the next line runs, so an error is raised at
# the line that caused it.
with xdevice.accelerator.blocking(), xdevice.Benchmark("in blocking mode"):
    for _ in range(10):
        b = a @ a

print("one product takes", xdevice.measure(lambda: a @ a))
