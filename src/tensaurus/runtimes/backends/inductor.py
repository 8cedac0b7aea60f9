"""Runs models by torch.compile with Inductor, weights frozen, as its documentation advises for inference."""

from tensaurus.runtimes.backends.torch import Torch

__all__ = ["BACKEND"]

BACKEND = Torch(name="inductor", inductor={"freezing": True})
