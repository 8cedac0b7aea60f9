"""Import ONNX files as programs, and export programs as ONNX files."""
