"""OpenVINO at its default precision, bfloat16 where the processor computes in it: a peer."""

from tensaurus.runtimes.backends.openvino import OpenVino

__all__ = ["BACKEND"]

BACKEND = OpenVino(name="openvino_bf16", target=False, exact=False)
