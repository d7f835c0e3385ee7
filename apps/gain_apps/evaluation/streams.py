"""Streams as pure index sequences: which image of which domain comes when, in which batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.orders import Ints, Order, image_order
from gain_core.errors import ConfigError

__all__ = ["Segment", "StreamBatch", "StreamKind", "StreamPlan", "cdc_segments", "make_stream"]

StreamKind = Literal["csc", "cdc", "mds", "lha", "ramp", "recurring", "recorded"]

# A domain of CDC is cut into three visits.
NUM_SLOTS = 3
# The severities a domain climbs and descends in a ramp.
RAMP = (1, 2, 3, 4, 5, 4, 3, 2, 1)


class StreamBatch(NamedTuple):
    """One batch of a stream.

    Attributes
    ----------
    domains, images, rounds : array, (B,) int64
        Index of the domain, of the image within it, and of the round (0 but for `lha`).
    severities : array, (B,) float64
    """

    domains: Ints
    severities: npt.NDArray[np.float64]
    images: Ints
    rounds: Ints


class Segment(NamedTuple):
    """A visit to one domain: its index and how many batches the visit lasts."""

    domain: int
    batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """What a stream is made of.

    Attributes
    ----------
    kind : {"csc", "cdc", "mds", "lha", "ramp", "recurring"}
        `csc`: one domain after the other. `cdc`: domains recur in visits of random length.
        `mds`: all domains shuffled by sample. `lha`: `csc` in `rounds` rounds without a reset.
        `ramp`: as `csc`, but within a domain the severity climbs from 1 to 5 and descends
        again. `recurring`: the domains take turns, `visits` equal visits each. `recorded`: the
        images in list order, each of a domain of its own, as a camera met them.
    num_domains : int
    order : str
        See `image_order`.
    severity : float
        Of every sample but those of a ramp.
    batch_size : int
    seed : int
    delta : float
        Concentration of CDC's Dirichlet distribution.
    rounds, visits : int
    only_class : int or None
        See `image_order`.
    """

    kind: StreamKind
    num_domains: int
    order: Order = "list"
    severity: float = 5.0
    batch_size: int = 64
    seed: int = 0
    delta: float = 1.0
    rounds: int = 10
    visits: int = 3
    only_class: int | None = None

    def __post_init__(self) -> None:
        checks = (
            ("stream", ", ".join(get_args(StreamKind)), self.kind, get_args(StreamKind)),
            ("order", ", ".join(get_args(Order)), self.order, get_args(Order)),
        )
        for name, expected, value, choices in checks:
            if value not in choices:
                raise ConfigError(f"{name}: expected one of {expected}, got {value!r}")
        for name in ("num_domains", "batch_size", "rounds", "visits"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.seed < 0:
            raise ConfigError(f"seed: expected at least 0, got {self.seed}")
        if not self.delta > 0:
            raise ConfigError(f"delta: expected a number > 0, got {self.delta}")

    @property
    def is_random(self) -> bool:
        """Whether another seed gives another stream."""
        return self.order != "list" or self.kind in ("cdc", "mds")

    @property
    def pools_domains(self) -> bool:
        """Whether scores are of the stream as a whole, not a mean over domains (MDS)."""
        return self.kind == "mds"


def cdc_segments(
    num_domains: int,
    images_per_domain: int,
    batch_size: int,
    delta: float,
    seed: int,
) -> list[Segment]:
    """Visits of the continual dynamic change stream, as DPCore's CDC builds them.

    Parameters
    ----------
    num_domains, images_per_domain, batch_size : int
    delta : float
        Concentration of the Dirichlet distribution; large values make the visits equally long.
    seed : int
        Of NumPy's legacy generator, in which the published stream is defined.

    Returns
    -------
    list of Segment
        3 x num_domains visits; those of one domain add up to all its batches, and one may be
        empty. Visits are cut in whole batches: a domain's last batch may be short.

    Notes
    -----
    The published number of batches, ``5000 // 64 + 1``, is rounded up here, which is the same
    unless the batch size divides the images.
    """
    # The legacy generator is the definition of the published stream.
    rng = np.random.RandomState(seed)
    shares = rng.dirichlet([delta] * NUM_SLOTS, num_domains)
    total = -(-images_per_domain // batch_size)
    cuts = (np.cumsum(shares, axis=1)[:, :-1] * total).astype(int)
    edges = np.pad(cuts, ((0, 0), (1, 1)), constant_values=((0, 0), (0, total)))
    lengths = np.diff(edges, axis=1)
    return [
        Segment(int(domain), int(lengths[domain, slot]))
        for slot in range(NUM_SLOTS)
        for domain in rng.permutation(num_domains)
    ]


def make_stream(
    plan: StreamPlan,
    labels: npt.NDArray[np.integer[Any]],
    /,
    *,
    recorded: Ints | None = None,
) -> list[StreamBatch]:
    """The batches of a stream.

    Parameters
    ----------
    plan : StreamPlan
    labels : array, (N,) integer
        Of the images, which are the same in every domain.
    recorded : array, (N,) int64, optional
        Domain of each image; for the kind `recorded` only.

    Returns
    -------
    list of StreamBatch
        Batches of `mds` are all full but the last; all other streams start a new batch with
        every visit to a domain. The same plan gives the same stream.

    Raises
    ------
    ConfigError
        As `image_order`, or if a recording lacks its domains.
    """
    rng = np.random.default_rng(plan.seed)
    if plan.kind == "recorded":
        if recorded is None:
            raise ConfigError("stream: recorded needs the domain of each image, got none")
        images = np.arange(len(labels), dtype=np.int64)
        severities = np.full(len(images), float(plan.severity))
        return _cut(plan, recorded, images, severities=severities, number=0)

    only = plan.only_class
    if plan.order == "one-class" and only is None:
        # Drawn once: a stream of a single class keeps it through all its domains.
        only = int(rng.choice(np.unique(labels)))
    # So do frequent classes stay frequent.
    ranking = rng.permutation(np.unique(labels)) if plan.order == "long-tailed" else None

    def visit() -> Ints:
        return image_order(plan.order, labels, rng=rng, only_class=only, ranking=ranking)

    if plan.kind == "cdc":
        return _cdc(plan, [visit() for _ in range(plan.num_domains)])
    if plan.kind == "recurring":
        return _recurring(plan, [visit() for _ in range(plan.num_domains)])
    if plan.kind == "mds":
        return _mds(plan, visit(), rng=rng)
    rounds = plan.rounds if plan.kind == "lha" else 1
    batches: list[StreamBatch] = []
    for number in range(rounds):
        for domain in range(plan.num_domains):
            images = visit()
            severities = _severities(plan, len(images))
            batches += _batches(plan, domain, images, severities=severities, number=number)
    return batches


def _cdc(plan: StreamPlan, images: list[Ints]) -> list[StreamBatch]:
    """Each visit takes up a domain's images where the last visit left them."""
    size = plan.batch_size
    taken = [0] * plan.num_domains
    batches: list[StreamBatch] = []
    longest = max(len(order) for order in images)
    for domain, length in cdc_segments(plan.num_domains, longest, size, plan.delta, plan.seed):
        rows = images[domain][taken[domain] : taken[domain] + length * size]
        taken[domain] += len(rows)
        batches += _batches(plan, domain, rows)
    return batches


def _recurring(plan: StreamPlan, images: list[Ints]) -> list[StreamBatch]:
    """All domains in turn, `visits` times, each visit with the next part of the images."""
    parts = [np.array_split(order, plan.visits) for order in images]
    return [
        batch
        for number in range(plan.visits)
        for domain in range(plan.num_domains)
        for batch in _batches(plan, domain, parts[domain][number])
    ]


def _mds(plan: StreamPlan, images: Ints, *, rng: np.random.Generator) -> list[StreamBatch]:
    """All domains' samples in one random order."""
    domains = np.repeat(np.arange(plan.num_domains, dtype=np.int64), len(images))
    order = rng.permutation(len(domains))
    rows = np.tile(images, plan.num_domains)[order]
    severities = np.full(len(rows), float(plan.severity))
    return _cut(plan, domains[order], rows, severities=severities, number=0)


def _severities(plan: StreamPlan, count: int) -> npt.NDArray[np.float64]:
    """One severity for all samples of a visit, or those of a ramp."""
    if plan.kind != "ramp":
        return np.full(count, float(plan.severity))
    step = np.arange(count) * len(RAMP) // max(count, 1)
    return np.asarray(RAMP, dtype=np.float64)[step]


def _batches(
    plan: StreamPlan,
    domain: int,
    images: Ints,
    *,
    severities: npt.NDArray[np.float64] | None = None,
    number: int = 0,
) -> list[StreamBatch]:
    """The batches of one visit."""
    domains = np.full(len(images), domain, dtype=np.int64)
    if severities is None:
        severities = np.full(len(images), float(plan.severity))
    return _cut(plan, domains, images, severities=severities, number=number)


def _cut(
    plan: StreamPlan,
    domains: Ints,
    images: Ints,
    *,
    severities: npt.NDArray[np.float64],
    number: int,
) -> list[StreamBatch]:
    """Cut samples into batches, the last of which may be short."""
    rounds = np.full(len(images), number, dtype=np.int64)
    return [
        StreamBatch(domains[rows], severities[rows], images[rows], rounds[rows])
        for start in range(0, len(images), plan.batch_size)
        for rows in (slice(start, start + plan.batch_size),)
    ]
