"""ONNX's own shape inference, in a child process: it may take any time and memory on a hostile model.

It propagates the elements of integer tensors, too, as many as a model says that there are.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from threading import Lock

import onnx
from onnx import ModelProto

from tensaurus.system.child import Child, ChildError

__all__ = ["infer_shapes"]

ANSWER_SECONDS = 20.0  # seconds
START_SECONDS = 60.0  # more, until the process has started on a busy machine
MAX_MEMORY = 1 << 31  # bytes; a model comes without its weights


class InferenceChild:
    """What the child does."""

    def ready(self) -> None:
        """It has started."""

    def infer(self, light: bytes, elements: bool) -> bytes | None:
        """The model with what could be inferred, of the elements of shapes too; None where it is refused."""
        model = onnx.load_from_string(light)
        try:
            return bytes(onnx.shape_inference.infer_shapes(model, data_prop=elements).SerializeToString())
        except MemoryError:
            raise
        except Exception:
            return None


def infer_shapes(light: ModelProto) -> ModelProto:
    """The model, which has no weights, with the types that ONNX infers; as it is where it refuses.

    With a warning where that takes too much time or memory: then elements are not propagated, and where that
    is not enough, nothing is inferred.
    """
    source = light.SerializeToString()
    for elements in (True, False):
        with _lock:
            try:
                inferred = _start_child(os.getpid()).ask("infer", source, elements)
            except ChildError as error:  # it was closed, or has no memory left
                _start_child.cache_clear()
                reason = error.reason
            else:  # inference is advice: what it cannot type stays untyped
                return light if inferred is None else onnx.load_from_string(inferred)
    warnings.warn(f"shape inference failed, only declared types are known: {reason}", stacklevel=2)
    return light


_lock = Lock()


@cache
def _start_child(pid: int) -> Child:
    """One for each process that asks."""
    target = f"{__name__}:InferenceChild"
    child = Child("ONNX's shape inference", target, timeout=ANSWER_SECONDS, memory=MAX_MEMORY)
    child.ask("ready", patience=START_SECONDS)
    return child
