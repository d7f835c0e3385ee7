"""Measuring what a frame costs, stage by stage: the parts of `gain-bench`."""
