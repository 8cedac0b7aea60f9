"""torch.compile with Inductor: weights frozen to constants, as its documentation advises for inference."""

from tensaurus.runtimes.backends.torch import Torch

__all__ = ["BACKEND"]

BACKEND = Torch(name="inductor", inductor={"freezing": True})
