"""Models as graphs of interned nodes: the nodes, analyses of them, and import from and export to ONNX."""
