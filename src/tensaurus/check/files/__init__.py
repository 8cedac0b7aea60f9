"""Two model files compared: interface, outputs, errors."""
