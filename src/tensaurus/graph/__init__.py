"""Programs of interned nodes, what is known of them, and their way from and to ONNX."""
