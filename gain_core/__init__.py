"""GAIN: gain-aware, backpropagation-free continual test-time adaptation, as pure array code."""

__version__ = "0.1.0"
