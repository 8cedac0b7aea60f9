"""Runs models on torch in eager mode with convolutions in channels_last order, as advised for CPUs."""

from tensaurus.runtimes.backends.torch import Torch

__all__ = ["BACKEND"]

BACKEND = Torch(name="torch_channels_last", channels_last=True)
