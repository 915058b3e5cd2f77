"""Traces a model: records each call of a layer, in order, with the layer's inputs and outputs."""
