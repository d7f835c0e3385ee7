"""Flags that several commands share, and flags that were called something else."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["add_device_flags", "add_old_spelling", "add_removed"]


def add_device_flags(group: argparse._ArgumentGroup, /, *, threads_dest: str = "threads") -> None:
    """Add `--device`, `--allow-host-code` and `--num-threads`: where a network runs.

    Parameters
    ----------
    group : argument group
        Of an `argparse` parser.
    threads_dest : str, optional
        Under what the number of threads is stored.
    """
    group.add_argument("--device", help="cpu (default), cuda, tensorrt, or auto")
    group.add_argument(
        "--allow-host-code",
        action="store_true",
        help="run an engine built with --version-compatible, which brings code for the CPU",
    )
    threads = group.add_argument(
        "--num-threads",
        type=int,
        metavar="N",
        dest=threads_dest,
        help="CPU threads for the network, and to preprocess a batch in (default: its library's "
        "choice, and all cores)",
    )
    add_old_spelling(group, "--threads", threads)
    add_removed(group, "--device-preprocess", why="frames are always preprocessed on the CPU")


def add_old_spelling(group: argparse._ArgumentGroup, old: str, new: argparse.Action, /) -> None:
    """Take the former name of a flag for one release, with one line of warning.

    Parameters
    ----------
    group : argument group
        Where `new` is.
    old : str
        The former name.
    new : argparse.Action
        What `add_argument` returned for the flag; it stores one value, or a constant.
    """
    group.add_argument(
        old,
        action=_OldSpelling,
        dest=new.dest,
        nargs=new.nargs,
        const=new.const,
        type=new.type or str,
        choices=new.choices,
        new=new.option_strings[0],
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )


def add_removed(
    group: argparse._ArgumentGroup, name: str, /, *, why: str, num_values: int = 0
) -> None:
    """Take a flag that does nothing any more for one release, with one line of warning.

    Parameters
    ----------
    group : argument group
    name : str
    why : str
        Ends the warning.
    num_values : int, optional
        How many the flag had.
    """
    group.add_argument(
        name,
        action=_Removed,
        nargs=num_values,
        why=why,
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )


class _OldSpelling(argparse.Action):
    """Stores what was given where the new flag stores it."""

    def __init__(self, *args: Any, new: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._new = new

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        _warn(parser, f"{option_string} is now {self._new}; the next release knows that name only")
        setattr(namespace, self.dest, self.const if self.nargs == 0 else values)


class _Removed(argparse.Action):
    """Stores nothing."""

    def __init__(self, *args: Any, why: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._why = why

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        _warn(parser, f"{option_string} has no effect and goes with the next release: {self._why}")


def _warn(parser: argparse.ArgumentParser, text: str) -> None:
    print(f"{parser.prog}: warning: {text}", file=sys.stderr)
