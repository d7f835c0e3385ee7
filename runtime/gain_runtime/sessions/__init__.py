"""Loaded networks: ONNX Runtime, TensorRT, adaptive files, one shared by several streams."""
