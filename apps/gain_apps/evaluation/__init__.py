"""Evaluation: streams of labelled domains, methods that adapt to them, and what they scored."""
