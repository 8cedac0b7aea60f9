"""ONNX files read into programs, and programs written as ONNX files."""
