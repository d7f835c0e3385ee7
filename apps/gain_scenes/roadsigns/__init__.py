"""A world of road signs drawn by code: still samples and a drive with changing conditions."""

from __future__ import annotations
