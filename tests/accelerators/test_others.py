"""TensorFlow's own foreign device, and Paddle on a plugin's device under its own name."""

from __future__ import annotations

from textwrap import dedent

from helpers.environment import needs, printed


def run(script: str, **variables: str) -> None:
    assert printed("-c", dedent(script) + '\nprint("done")', bare=True, **variables).endswith(
        "done"
    )


def test_tensorflows_xla_cpu_is_refused_by_name_and_waited_for():
    needs("tensorflow")
    run(
        """
        import tensorflow as tf
        import xdevice
        xdevice.set_backend("tensorflow")
        with tf.device("/device:XLA_CPU:0"):
            x = tf.ones((4, 4)) + 1
        assert "XLA_CPU" in x.backing_device
        assert xdevice.try_gpu() is xdevice.cpu()
        for task in (lambda: xdevice.device_of(x), lambda: xdevice.to_device([x], "gpu:0")):
            try:
                task()
            except (xdevice.errors.UnsupportedError, xdevice.errors.DeviceNotFoundError) as error:
                assert "XLA_CPU" in str(error) or "gpu:0" in str(error)
            else:
                raise AssertionError("it was taken")
        from xdevice_tensorflow import accelerators
        made = []
        constant = tf.constant

        def seen(value):
            made.append(constant(value))
            return made[-1]

        tf.constant = seen
        xdevice.sync()
        assert [one.backing_device.rpartition("device:")[2] for one in made] == ["XLA_CPU:0"], made
        """,
        TF_XLA_FLAGS="--tf_xla_enable_xla_devices",
    )


def test_tensorflows_only_other_type_is_the_gpu():
    needs("tensorflow")
    run("""
        from types import SimpleNamespace
        import tensorflow as tf
        import xdevice
        backend = xdevice.backend("tensorflow")
        xdevice.set_backend("tensorflow")
        types = ["CPU", "XPU", "XPU"]
        physical = [SimpleNamespace(name=f"/physical_device:{one}:{i}", device_type=one) for i, one in enumerate(types)]
        tf.config.list_physical_devices = lambda kind=None: [one for one in physical if kind in (None, one.device_type)]
        tf.config.get_visible_devices = tf.config.list_physical_devices
        tf.config.get_logical_device_configuration = lambda one: None
        assert xdevice.num_gpus() == 2
        assert xdevice.gpu(1).native == xdevice.device("xpu:1").native == "/XPU:1"
        assert backend._place("/job:localhost/replica:0/task:0/device:XPU:1") is xdevice.gpu(1)
        assert backend.hardware() == {"xpu"}
        for task in (lambda: xdevice.device("cuda:1").native, lambda: backend._place("/device:GPU:0"),
                     lambda: backend._place("/device:TPU:0")):
            try:
                task()
            except xdevice.errors.XDeviceError:
                continue
            raise AssertionError("it was taken")
    """)


def test_paddle_counts_no_memory_of_another_vendor_and_resets_no_peak():
    needs("paddle")
    run("""
        import xdevice
        xdevice.set_backend("paddle")
        backend = xdevice.backend()
        for backend._gpu in ("xpu", "npu"):
            backend._gpus = 1
            assert backend.memory(xdevice.gpu(0)).allocated is None
            try:
                xdevice.accelerator.reset_peak_memory_stats("gpu:0")
            except xdevice.errors.UnsupportedError as error:
                assert "paddle" in str(error)
            else:
                raise AssertionError(backend._gpu)
    """)


def test_paddles_only_plugin_is_the_gpu_under_its_own_name():
    needs("paddle")
    run("""
        import importlib.util, sys, types
        from pathlib import Path
        import xdevice
        # a plugin registers before Paddle is imported, and nobody has asked for virtual GPUs
        folder = Path(importlib.util.find_spec("xdevice_paddle").origin).parent
        package = types.ModuleType("xdevice_paddle")
        package.__path__ = [str(folder)]
        sys.modules["xdevice_paddle"] = package
        from xdevice_paddle import virtual_devices
        with virtual_devices.importing(2):
            import paddle
        del sys.modules["xdevice_paddle"]
        xdevice.set_backend("paddle")
        assert xdevice.num_gpus() == 2 and not xdevice.backend().virtual
        x = xdevice.ones(2, 3, device="vgpu:1")
        assert x.place.custom_device_type() == "vgpu"
        assert xdevice.device_of(x) is xdevice.gpu(1)
        assert xdevice.to_device(x, "vgpu:1") is xdevice.to_device(x, "gpu:1") is x
        assert xdevice.to_numpy(xdevice.to_device(x, "cpu")).tolist() == [[1, 1, 1], [1, 1, 1]]
        waits, own = [], paddle.device.synchronize
        paddle.device.synchronize = lambda place: (waits.append(str(place)), own(place))
        xdevice.sync(x)
        xdevice.sync()
        assert len(waits) == 3 and "vgpu:1" in waits[0], waits
        assert xdevice.measure(lambda: x, warmup=0, repeats=1).clock == "host"
        for word in ("cuda:1", "xpu:1", "npu:1"):
            try:
                xdevice.to_device(x, word)
            except xdevice.errors.DeviceNotFoundError as error:
                assert "gpu:i is vgpu" in str(error)
            else:
                raise AssertionError(word)
        assert xdevice.backend().describe(xdevice.gpu(0)).name == "vgpu"
    """)
