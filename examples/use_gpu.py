"""Use a GPU: the chapter of d2l.ai as one script for every framework.

    XDEVICE_BACKEND=mxnet python examples/use_gpu.py
    XDEVICE_BACKEND=mxnet XDEVICE_VIRTUAL_GPUS=2 python examples/use_gpu.py    # two virtual GPUs
    python examples/tour.py                                                    # both, on every framework

The chapter: https://d2l.ai/chapter_builders-guide/use-gpu.html
"""

import time

import xdevice

print(f"This is {xdevice.backend().name} {xdevice.backend().version}.")

# Which devices are there? try_gpu returns the CPU if there is no GPU, so this also runs on a
# laptop.
print("devices:", xdevice.cpu(), xdevice.try_gpu(), xdevice.try_gpu(10), xdevice.try_all_gpus())
device = xdevice.try_gpu()

# A tensor is created on the CPU unless you name another device.
x = xdevice.tensor([1, 2, 3])
print("x is on", xdevice.device_of(x))
assert xdevice.device_of(x) == xdevice.cpu()

X = xdevice.ones(2, 3, device=device)
Y = xdevice.random.uniform(2, 3, device=device)
print("X is on", xdevice.device_of(X))
assert xdevice.device_of(X) == xdevice.device_of(Y) == device

# A copy leaves the source where it is. Moving a tensor to the device that it is on returns the
# same object.
Z = xdevice.copy_to(X, xdevice.cpu())
print("Z is a copy on", xdevice.device_of(Z), "and X is still on", xdevice.device_of(X))
print("moved where it is, it is the same object:", xdevice.to_device(X, device) is X)
assert xdevice.device_of(Z) == xdevice.cpu()
assert Z is not X
assert xdevice.to_device(X, device) is X

# Tensors that are added must be on one device. check_same_device raises an error if they are
# not, and xdevice never moves a tensor silently.
second = [*xdevice.try_all_gpus(), xdevice.cpu()][1]
Z = xdevice.to_device(X, second)
print(
    "X is on",
    device,
    "and Z on",
    second,
    "which is the same device:",
    xdevice.same_device(X, Z),
)
assert xdevice.same_device(X, Z) == (device == second)
xdevice.check_same_device(X, Y)
with device:
    S = X + Y
print("X + Y =", xdevice.to_numpy(S).round(2).tolist())
assert xdevice.device_of(S) == device

# This layer has three inputs and one output. Its parameters are in a container, so they move
# together.
xp = xdevice.array_namespace()  # the functions of arithmetic, the same on every framework
layer = xdevice.to_device(
    {"weight": xdevice.random.normal(3, 1), "bias": xdevice.zeros(1)}, device
)
out = xp.add(xp.matmul(X, layer["weight"]), layer["bias"])
print("layer(X) =", xdevice.to_numpy(out).round(2).tolist())
print("its parameters are on", {name: str(xdevice.device_of(p)) for name, p in layer.items()})
assert xdevice.device_of(out) == xdevice.device_of(layer) == device


# Exercise 1: How long does a product take? Work on a GPU is asynchronous, so wait before you
# read the clock.
def product_time(size, place):
    with place:
        a, b = xdevice.random.uniform(size, size), xdevice.random.uniform(size, size)
        xdevice.sync(a @ b)
        start = time.perf_counter()
        xdevice.sync(a @ b)
        return time.perf_counter() - start


for size in (1500, 10):
    for place in dict.fromkeys([xdevice.cpu(), device]):
        print(
            f"a product of {size} x {size} on {place}: {1000 * product_time(size, place):.3f} ms"
        )


# Exercise 3: Compute the norms of 1000 products. Read them one by one, or keep them on the
# device and read only the last one.
a = xdevice.random.uniform(100, 100, device=device)


def norm(matrix):
    return xp.sqrt(xp.sum(xp.square(matrix)))


with device:
    for _ in range(100):  # the first calls compile code and start threads
        xdevice.sync(norm(a @ a))
    with xdevice.Benchmark("1000 norms read one by one"):
        numbers = [xdevice.item(norm(a @ a)) for _ in range(1000)]
    with xdevice.Benchmark("1000 norms kept on the device"):
        norms = [norm(a @ a) for _ in range(1000)]
        last = xdevice.item(norms[-1])
print("the last norm is", round(last, 3))
assert abs(last - numbers[-1]) <= 1e-4 * last
