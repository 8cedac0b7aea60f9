"""Run ONNX's shape inference in a child process, where time and memory are limited.

Inference also propagates the elements of integer tensors.  A hostile model can state so many elements that
inference takes any time and memory.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from threading import Lock

import onnx
from onnx import ModelProto

from tensaurus.system.child import Child, ChildError

ANSWER_SECONDS = 20.0  # for the inference of one model
START_SECONDS = 60.0  # until the process has started, on a busy machine
MAX_MEMORY = 1 << 31  # bytes of the child; models are sent without their weights


class InferenceChild:
    """The methods that the child process answers."""

    def ready(self) -> None:
        """Answer, to show that the process has started."""

    def infer(self, light: bytes, elements: bool) -> bytes | None:
        """Return the model with inferred types, None where onnx refuses the model.

        elements  whether the elements of shapes are propagated, too
        """
        model = onnx.load_from_string(light)
        try:
            return bytes(onnx.shape_inference.infer_shapes(model, data_prop=elements).SerializeToString())
        except MemoryError:
            raise
        except Exception:
            return None


def infer_shapes(light: ModelProto) -> ModelProto:
    """Return a model without weights with the types that ONNX infers; unchanged where onnx refuses it.

    Where inference takes too much time or memory, it runs again without propagating elements.  Where that
    fails, too, nothing is inferred, and a warning says so.
    """
    source = light.SerializeToString()
    for elements in (True, False):
        with _lock:
            try:
                inferred = _start_child(os.getpid()).ask("infer", source, elements)
            except ChildError as error:  # time or memory ran out, or the child was closed
                _start_child.cache_clear()
                reason = error.reason
            else:
                return light if inferred is None else onnx.load_from_string(inferred)
    warnings.warn(f"shape inference failed, only declared types are known: {reason}", stacklevel=2)
    return light


_lock = Lock()


@cache
def _start_child(pid: int) -> Child:
    """Return the child of this process; the argument keeps a forked process from using its parent's."""
    target = f"{__name__}:InferenceChild"
    child = Child("ONNX's shape inference", target, timeout=ANSWER_SECONDS, memory=MAX_MEMORY)
    child.ask("ready", patience=START_SECONDS)
    return child
