"""Algorithm 1 of the paper: class-conditional Gaussians, learned from every frame."""

from gain_core.paper.config import PaperConfig
from gain_core.paper.method import Paper, PaperState

__all__ = ["Paper", "PaperConfig", "PaperState"]
