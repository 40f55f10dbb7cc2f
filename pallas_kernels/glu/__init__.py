"""The gated linear unit between the two products of a layer's perceptron."""

from pallas_kernels.glu.api import ACTIVATIONS, glu

__all__ = ["ACTIVATIONS", "glu"]
