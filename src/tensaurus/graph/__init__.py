"""Programs of interned nodes, their text, and their way from and to ONNX."""
