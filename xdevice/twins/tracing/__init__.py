"""Traces the layers of a model: each call of a layer, in order, with the layer's inputs and outputs."""
