"""What one run of the optimizer is given: options, a model, a runtime, kernels and a time limit."""
