"""Streams of images as index sequences: which image of which domain comes when, in which batch.

Those of a data set are here; what a camera sees is in `camera_streams`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.methods.registry import parse_spec
from gain_core.errors import ConfigError

__all__ = [
    "CAMERA_STREAMS",
    "Ints",
    "Order",
    "Segment",
    "StreamBatch",
    "StreamKind",
    "StreamPlan",
    "cdc_segments",
    "cut",
    "image_order",
    "make_stream",
    "parse_stream",
]

Ints = npt.NDArray[np.int64]
Order = Literal["list", "shuffled", "runs", "sorted", "long-tailed", "one-class"]
CameraKind = Literal[
    "video",
    "tailed",
    "few",
    "few-samples",
    "mixed",
    "one-after",
    "one-same",
    "one-class",
    "parked",
    "day-night",
]
StreamKind = Literal[
    "csc", "cdc", "mds", "lha", "ramp", "recurring", "recorded", "recorded-one", CameraKind
]
CAMERA_STREAMS: tuple[str, ...] = get_args(CameraKind)

# A camera that stays with one object for two to five seconds at 30 Hz.
RUN_FRAMES = (60, 140)
# Frames of the most frequent class for one of the rarest.
IMBALANCE = 100.0

# A domain of CDC is cut into three visits.
NUM_SLOTS = 3
# The severities a domain climbs and descends in a ramp.
RAMP = (1, 2, 3, 4, 5, 4, 3, 2, 1)


class StreamBatch(NamedTuple):
    """One batch of a stream.

    Attributes
    ----------
    domains, images, rounds : array, (B,) int64
        Index of the domain, of the image within it (-1 is a scene without an object), and of the
        round (0 but for `lha`).
    severities : array, (B,) float64
    scored : bool
        Whether the batch counts; all do but what leads up to the part that a stream is about.
    """

    domains: Ints
    severities: npt.NDArray[np.float64]
    images: Ints
    rounds: Ints
    scored: bool = True


class Segment(NamedTuple):
    """A visit to one domain: its index and how many batches the visit lasts."""

    domain: int
    batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """What a stream is made of.

    Attributes
    ----------
    kind : str
        `csc`: one domain after the other. `cdc`: domains recur in visits of random length.
        `mds`: all domains shuffled by sample. `lha`: `csc` in `rounds` rounds without a reset.
        `ramp`: as `csc`, but within a domain the severity climbs from 1 to 5 and descends
        again. `recurring`: the domains take turns, `visits` equal visits each. `recorded`: the
        images in list order, each of a domain of its own, as a camera met them. `recorded-one`:
        the first recording, then `frames` frames of one class out of the last, scored on those.
        The others are those of `camera_streams`.
    num_domains : int
    order : str
        See `image_order`; of the streams of a data set only.
    severity : float
        Of every sample but those of a ramp.
    batch_size : int
    seed : int
    delta : float
        Concentration of CDC's Dirichlet distribution.
    rounds, visits : int
    frames : int
        Of the one thing of `parked`, the night of `day-night`, the one class of `recorded-one`.
    only_class : int or None
        The class of streams of one class; by default the seed chooses.
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
    frames: int = 3000
    only_class: int | None = None

    def __post_init__(self) -> None:
        checks = (
            ("stream", ", ".join(STREAMS), self.kind, STREAMS),
            ("order", ", ".join(get_args(Order)), self.order, get_args(Order)),
        )
        for name, expected, value, choices in checks:
            if value not in choices:
                raise ConfigError(f"{name}: expected one of {expected}, got {value!r}")
        for name in ("num_domains", "batch_size", "rounds", "visits", "frames"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.seed < 0:
            raise ConfigError(f"seed: expected at least 0, got {self.seed}")
        if not self.delta > 0:
            raise ConfigError(f"delta: expected a number > 0, got {self.delta}")

    @property
    def is_random(self) -> bool:
        """Whether another seed gives another stream."""
        return self.order != "list" or self.kind in ("cdc", "mds", "recorded-one", *CAMERA_STREAMS)

    @property
    def pools_domains(self) -> bool:
        """Whether scores are of the stream as a whole, not a mean over domains."""
        return self.kind in ("mds", "recorded", "recorded-one")

    @property
    def is_camera(self) -> bool:
        """Whether objects stay for a while, each frame with a little noise."""
        return self.kind in CAMERA_STREAMS


STREAMS: tuple[str, ...] = (
    *("csc", "cdc", "mds", "lha", "ramp", "recurring", "recorded", "recorded-one"),
    *CAMERA_STREAMS,
)
# What a stream's name may be followed by, and the field of `StreamPlan` that it sets.
STREAM_OPTIONS = {
    "delta": "delta",
    "rounds": "rounds",
    "visits": "visits",
    "frames": "frames",
    "class": "only_class",
}


def parse_stream(text: str, /) -> dict[str, Any]:
    """Read `NAME` or `NAME:key=value`: `cdc:delta=2`, `lha:rounds=3`, `one-after:class=7`.

    Returns
    -------
    dict
        Fields of `StreamPlan`, `kind` among them.

    Raises
    ------
    ConfigError
        If the name or a key is unknown, or a value is no number.
    """
    kind, options = parse_spec(text)
    unknown = sorted(set(options) - set(STREAM_OPTIONS))
    if kind not in STREAMS or unknown:
        raise ConfigError(
            f"stream {text}: expected one of {', '.join(STREAMS)}, with "
            f"{', '.join(f'{key}=N' for key in STREAM_OPTIONS)} where it has any"
        )
    for key, value in options.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole and not (key == "delta" and isinstance(value, float)):
            raise ConfigError(f"stream {text}: {key}: expected a number, got {value!r}")
    return {"kind": kind, **{STREAM_OPTIONS[key]: value for key, value in options.items()}}


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
    num_classes: int,
    recorded: Ints | None = None,
    recordings: Sequence[int] = (),
) -> list[StreamBatch]:
    """The batches of a stream.

    Parameters
    ----------
    plan : StreamPlan
    labels : array, (N,) integer
        Of the images, which are the same in every domain.
    num_classes : int
        K of the head, which may be more than have images.
    recorded : array, (N,) int64, optional
        Domain of each image, and
    recordings : sequence of int
        how many images each recording has: for what was recorded only.

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
    # Imported late: it is made of what is defined here.
    from gain_apps.evaluation import camera_streams

    if plan.kind.startswith("recorded"):
        if recorded is None:
            raise ConfigError(f"stream: {plan.kind} is for what a test:// source recorded")
        return camera_streams.recorded_stream(plan, labels, recorded, recordings)
    if plan.is_camera:
        return camera_streams.camera_stream(plan, labels, num_classes=num_classes)
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
    return cut(plan, domains[order], rows, severities=severities, number=0)


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
    return cut(plan, domains, images, severities=severities, number=number)


def cut(
    plan: StreamPlan,
    domains: Ints,
    images: Ints,
    *,
    severities: npt.NDArray[np.float64],
    number: int = 0,
    scored: bool = True,
) -> list[StreamBatch]:
    """Cut samples into batches, the last of which may be short."""
    rounds = np.full(len(images), number, dtype=np.int64)
    return [
        StreamBatch(domains[rows], severities[rows], images[rows], rounds[rows], scored)
        for start in range(0, len(images), plan.batch_size)
        for rows in (slice(start, start + plan.batch_size),)
    ]


def image_order(
    order: Order,
    labels: npt.NDArray[np.integer[Any]],
    /,
    *,
    rng: np.random.Generator,
    only_class: int | None = None,
    ranking: Ints | None = None,
) -> Ints:
    """Image indices of one visit to a domain.

    Parameters
    ----------
    order : {"list", "shuffled", "runs", "sorted", "long-tailed", "one-class"}
        `list` is the data set's own order. `runs` shows 60 to 140 frames of one class, then of
        another, until every image was shown. `sorted` shows all of one class, then all of the
        next, classes in random order. `long-tailed` shuffles all images of one class, and of the
        others fewer and fewer, down to a hundredth. `one-class` shows a single class.
    labels : array, (N,) integer
    rng : Generator
        Everything random comes from it.
    only_class : int, optional
        The class of `one-class`; by default one is drawn among those present.
    ranking : array, (K,) int64, optional
        The classes of `long-tailed`, the most frequent first; by default in random order.

    Returns
    -------
    array, (M,) int64
        M is N, or the number of images shown of each class.

    Raises
    ------
    ConfigError
        If the order is unknown or the class has no images.
    """
    if order not in get_args(Order):
        raise ConfigError(f"order: expected one of {', '.join(get_args(Order))}, got {order!r}")
    if order == "list":
        return np.arange(len(labels), dtype=np.int64)
    shuffled = rng.permutation(len(labels)).astype(np.int64)
    if order == "shuffled":
        return shuffled
    if order == "one-class":
        return _one_class(shuffled, labels, rng=rng, only_class=only_class)
    if order == "long-tailed":
        ranking = rng.permutation(np.unique(labels)) if ranking is None else ranking
        return _long_tailed(shuffled, labels, ranking)
    classes = rng.permutation(np.unique(labels))
    by_class = [shuffled[labels[shuffled] == label] for label in classes]
    return np.concatenate(by_class if order == "sorted" else _runs(by_class, rng=rng))


def _one_class(
    shuffled: Ints,
    labels: npt.NDArray[np.integer[Any]],
    *,
    rng: np.random.Generator,
    only_class: int | None,
) -> Ints:
    """The images of a single class."""
    present = np.unique(labels)
    if only_class is None:
        only_class = int(rng.choice(present))
    if only_class not in present:
        raise ConfigError(
            f"class: expected a class with images, got {only_class}; "
            f"{len(present)} classes from {present[0]} to {present[-1]} have some"
        )
    chosen: Ints = shuffled[labels[shuffled] == only_class]
    return chosen


def _long_tailed(shuffled: Ints, labels: npt.NDArray[np.integer[Any]], ranking: Ints, /) -> Ints:
    """Of every class the share that its rank leaves it, one image at least."""
    shown = labels[shuffled]
    kept = np.zeros(len(shuffled), dtype=bool)
    by_class = [np.flatnonzero(shown == label) for label in ranking]
    counts = _tail_counts([len(places) for places in by_class], IMBALANCE)
    for places, count in zip(by_class, counts, strict=True):
        kept[places[:count]] = True
    chosen: Ints = shuffled[kept]
    return chosen


def _tail_counts(counts: Sequence[int], ratio: float, /) -> list[int]:
    """How many images of every class a long tail leaves."""
    shares = ratio ** -np.linspace(0.0, 1.0, len(counts))
    return [
        max(1, round(float(share) * count)) for share, count in zip(shares, counts, strict=True)
    ]


def _runs(by_class: list[Ints], *, rng: np.random.Generator) -> list[Ints]:
    """Cut each class's images into runs and shuffle the runs."""
    shortest, longest = RUN_FRAMES
    runs: list[Ints] = []
    for images in by_class:
        start = 0
        while start < len(images):
            length = int(rng.integers(shortest, longest + 1))
            runs.append(images[start : start + length])
            start += length
    return [runs[index] for index in rng.permutation(len(runs))]
