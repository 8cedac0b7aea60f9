"""Prepares one run of the optimizer: options, model, first run, runtime, kernels, time limit."""
