"""Inception-v3, and the 1-D Inception-ResNet-V2."""
