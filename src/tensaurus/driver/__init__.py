"""The parts of one run of the optimizer: options in, an original on its target, contenders, a result."""
