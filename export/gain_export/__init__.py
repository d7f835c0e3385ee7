"""Exporting classifiers to self-describing ONNX artifacts."""
