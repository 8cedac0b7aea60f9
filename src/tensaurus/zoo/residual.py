"""Residual networks: ResNet, ResNeXt, ResNeSt."""
