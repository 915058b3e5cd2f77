"""Computing without a framework's name: arrays, gradients, functions of layers, optimizers, random numbers."""
