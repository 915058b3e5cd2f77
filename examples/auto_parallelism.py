"""Automatic parallelism: the chapter of d2l.ai as one script for every framework.

    XDEVICE_BACKEND=torch python examples/auto_parallelism.py

With two GPUs it uses both. Otherwise it runs two tasks on one device. For real GPUs, use larger
matrices:

    XDEVICE_BACKEND=torch python examples/auto_parallelism.py 4000

The chapter: https://d2l.ai/chapter_computational-performance/auto-parallelism.html
"""

import sys

import xdevice

print(f"This is {xdevice.backend().name} {xdevice.backend().version}.")
devices = (xdevice.try_all_gpus() * 2)[:2]
size = int(sys.argv[1]) if len(sys.argv) > 1 else 400
xs = [xdevice.random.uniform(size, size, device=device) for device in devices]


def run(x):
    with xdevice.device_of(x):  # otherwise TensorFlow computes on the first GPU
        return [x @ x for _ in range(20)]


for x in xs:
    xdevice.sync(run(x))  # warm up

# Each task alone, then both at once. If the devices do not share cores, running both side by
# side takes less time than the sum of both times.
for i, x in enumerate(xs):
    with xdevice.Benchmark(f"task {i} on {devices[i]}"):
        run(x)
with xdevice.Benchmark("both, one after the other"):
    for x in xs:
        run(x)
        xdevice.sync()
with xdevice.Benchmark("both side by side"):
    xdevice.parallel.run(lambda: run(xs[0]), lambda: run(xs[1]))


# Compute, and copy the results to the host, first one after the other and then at the same
# time.
def copy_to_host(ys):
    return [xdevice.copy_to(y, "cpu") for y in ys]


with xdevice.Benchmark("compute"):
    ys = run(xs[0])
with xdevice.Benchmark("copy to the host"):
    copy_to_host(ys)
with xdevice.Benchmark("compute, and copy each result as soon as it is there"):
    for _ in range(20):
        xdevice.copy_to(xs[0] @ xs[0], "cpu")

# Batches come from the host. prefetch copies the next batch while the device computes with the
# current one.
batches = [xdevice.to_numpy(xdevice.random.uniform(size, size)) for _ in range(8)]
with xdevice.Benchmark("batches copied and computed in turn"):
    for batch in batches:
        y = xdevice.tensor(batch, device=devices[0]) @ xs[0]
with xdevice.Benchmark("batches prefetched"):
    for x in xdevice.prefetch(batches, devices[0]):
        y = x @ xs[0]
