"""Runs models on OpenVINO at its default precision, bfloat16 on processors that have it, to compare times."""

from tensaurus.runtimes.backends.openvino import OpenVino

__all__ = ["BACKEND"]

BACKEND = OpenVino(name="openvino_bf16", target=False, exact=False)
