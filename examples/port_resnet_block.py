"""Port the weights of a ResNet basic block from PyTorch to Paddle, Gluon and Keras, and check
that all four agree.

    python examples/port_resnet_block.py

The block is written in the style of each framework. It has two 3x3 convolutions with batch
normalization, the first with a stride of 2, and a 1x1 convolution on the shortcut. Frameworks
that are not installed are left out.
"""

import numpy as np

import xdevice

INPUTS, OUTPUTS, SIZE = 8, 16, 14
IMAGES = np.random.default_rng(0).standard_normal((4, INPUTS, SIZE, SIZE)).astype("float32")
TOLERANCE = 1e-5


def torch_block():
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(INPUTS, OUTPUTS, 3, stride=2, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(OUTPUTS)
            self.conv2 = nn.Conv2d(OUTPUTS, OUTPUTS, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(OUTPUTS)
            self.down_conv = nn.Conv2d(INPUTS, OUTPUTS, 1, stride=2, bias=False)
            self.down_bn = nn.BatchNorm2d(OUTPUTS)

        def forward(self, x):
            y = torch.relu(self.bn1(self.conv1(x)))
            y = self.bn2(self.conv2(y))
            return torch.relu(y + self.down_bn(self.down_conv(x)))

    torch.manual_seed(0)
    block = Block()
    with torch.no_grad():
        for _ in range(3):  # so that the running statistics are not 0 and 1
            block(torch.tensor(IMAGES) * 2 + 1)
        for name, parameter in block.named_parameters():
            if "bn" in name:
                parameter.add_(torch.rand_like(parameter))
    return block.eval()


def run_torch(block):
    import torch

    with torch.no_grad():
        return block(torch.tensor(IMAGES)).numpy()


def paddle_block():
    xdevice.set_backend("paddle")
    nn = xdevice.backend().framework.nn

    class Block(nn.Layer):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2D(INPUTS, OUTPUTS, 3, stride=2, padding=1, bias_attr=False)
            self.bn1 = nn.BatchNorm2D(OUTPUTS)
            self.conv2 = nn.Conv2D(OUTPUTS, OUTPUTS, 3, padding=1, bias_attr=False)
            self.bn2 = nn.BatchNorm2D(OUTPUTS)
            self.down_conv = nn.Conv2D(INPUTS, OUTPUTS, 1, stride=2, bias_attr=False)
            self.down_bn = nn.BatchNorm2D(OUTPUTS)

        def forward(self, x):
            y = nn.functional.relu(self.bn1(self.conv1(x)))
            y = self.bn2(self.conv2(y))
            return nn.functional.relu(y + self.down_bn(self.down_conv(x)))

    block = Block()
    block.eval()
    return block


def run_paddle(block):
    return xdevice.to_numpy(block(xdevice.tensor(IMAGES)))


def gluon_block():
    xdevice.set_backend("mxnet")
    xdevice.array_namespace()  # from here on, Gluon accepts xdevice's tensors
    nn = xdevice.backend().framework.gluon.nn

    class Block(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2D(
                OUTPUTS, 3, strides=2, padding=1, use_bias=False, in_channels=INPUTS
            )
            self.bn1 = nn.BatchNorm(in_channels=OUTPUTS)
            self.conv2 = nn.Conv2D(OUTPUTS, 3, padding=1, use_bias=False, in_channels=OUTPUTS)
            self.bn2 = nn.BatchNorm(in_channels=OUTPUTS)
            self.down_conv = nn.Conv2D(
                OUTPUTS, 1, strides=2, use_bias=False, in_channels=INPUTS
            )
            self.down_bn = nn.BatchNorm(in_channels=OUTPUTS)

        def hybrid_forward(self, F, x):  # noqa: N803  # the argument is Gluon's
            y = F.npx.relu(self.bn1(self.conv1(x)))
            y = self.bn2(self.conv2(y))
            return F.npx.relu(y + self.down_bn(self.down_conv(x)))

    block = Block()
    block.initialize()
    return block


def run_gluon(block):
    return xdevice.to_numpy(block(xdevice.tensor(IMAGES)))


def keras_block():
    xdevice.set_backend("tensorflow")
    xdevice.backend()
    import keras
    from keras import layers

    def normalised(name):
        # PyTorch's defaults; Keras's default epsilon is 1e-3
        return layers.BatchNormalization(epsilon=1e-5, momentum=0.9, name=name)

    x = keras.Input((SIZE, SIZE, INPUTS))
    # pads as PyTorch does; with a stride of 2, "same" would begin at another pixel
    y = layers.ZeroPadding2D(1)(x)
    y = layers.Conv2D(OUTPUTS, 3, strides=2, use_bias=False, name="conv1")(y)
    y = layers.ReLU()(normalised("bn1")(y))
    y = layers.Conv2D(OUTPUTS, 3, padding="same", use_bias=False, name="conv2")(y)
    y = normalised("bn2")(y)
    around = layers.Conv2D(OUTPUTS, 1, strides=2, use_bias=False, name="down_conv")(x)
    around = normalised("down_bn")(around)
    return keras.Model(x, layers.ReLU()(layers.Add()([y, around])))


def run_keras(block):
    y = block(xdevice.tensor(np.moveaxis(IMAGES, 1, -1)), training=False)
    return np.moveaxis(xdevice.to_numpy(y), -1, 1)


TARGETS = {
    "paddle": (paddle_block, run_paddle),
    "mxnet": (gluon_block, run_gluon),
    "tensorflow": (keras_block, run_keras),
}


def main():
    xdevice.set_backend("torch")
    xdevice.backend()
    block = torch_block()
    expected = run_torch(block)
    for name in TARGETS:
        try:
            build, run = TARGETS[name]
            target = build()
        except xdevice.errors.BackendNotFoundError as error:
            print(f"{name}: left out, {str(error).partition(';')[0]}")
            continue
        state = xdevice.models.convert_state(block, name, like=target)
        xdevice.load(state, into=target)
        listed = [text for text in state.differences if "num_batches_tracked" not in text]
        difference = np.abs(run(target) - expected).max()
        print(
            f"{name}: {len(state)} tensors, the largest difference is {difference:.1e}, {listed or 'nothing listed'}"
        )
        assert difference < TOLERANCE, f"{name} computes something else"


if __name__ == "__main__":
    main()
