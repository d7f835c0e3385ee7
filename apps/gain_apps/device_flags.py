"""Flags that say where a command runs its network, the same for all that run one stream."""

from __future__ import annotations

import argparse

__all__ = ["add_device_flags"]


def add_device_flags(group: argparse._ArgumentGroup, /) -> None:
    """Add `--device`, `--device-preprocess`, `--allow-host-code` and `--threads`.

    Parameters
    ----------
    group : argument group
        Of an `argparse` parser.
    """
    group.add_argument("--device", help="cpu (default), cuda, tensorrt, or auto")
    group.add_argument(
        "--device-preprocess",
        action="store_true",
        help="resize, crop and normalise on the GPU, too; same pixels",
    )
    group.add_argument(
        "--allow-host-code",
        action="store_true",
        help="run an engine built with --version-compatible, which brings code for the CPU",
    )
    group.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="CPU threads for the network, and to preprocess a batch in (default: its library's "
        "choice, and all cores)",
    )
