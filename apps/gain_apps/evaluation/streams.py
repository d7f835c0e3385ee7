"""Streams of images as index sequences: which image of which domain comes when, in which batch.

Those of a data set are described at `StreamPlan`. The others are what a camera sees: objects that
stay for a while, few of the classes, one thing for hours. Every image stands for an object that
stays for twelve frames with a little noise on its features; the method is given sixteen frames at a
time.

`video`        objects of all classes, 170 a domain, domain after domain
`tailed`       the same, some classes a hundred times as often as others
`few`          objects of a few classes only, the square root of K and at least five
`few-samples`  twenty objects a domain, so that the domain has changed before much is known of it
`mixed`        each object in a domain of its own, as several cameras on one network
`one-after`    all classes in all domains but the last, then 250 objects of one class in the last:
               scored on those
`one-same`     the same, the one class in the domain before it
`one-class`    one class from the beginning, in every domain
`parked`       two domains of video, then one thing in the next for 10,000 frames: scored on those
`day-night`    half of the domains by day, 3,000 frames of a scene with no object, then the next
               domain: scored on that

`few`, `few-samples` and `mixed` are BoTTA's scenarios of few categories, few samples and several
shifts at once; its adaptation now and then is a method that updates rarely
(`shift:update_every=512`). Where a stream is of one class the seeds take the classes in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.methods.registry import parse_spec
from gain_core.errors import ConfigError

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
STREAMS: tuple[str, ...] = get_args(StreamKind)

# A camera that stays with one object for two to five seconds at 30 Hz.
RUN_FRAMES = (60, 140)
# Frames of the most frequent class for one of the rarest.
IMBALANCE = 100.0

# Frames an object stays; objects a domain; objects of the one class after all others.
STAY, OBJECTS, ONE_CLASS_OBJECTS = 12, 170, 250
FEW_SAMPLES = 20
PARKED_FRAMES = 10_000
# Of each feature's deviation over clean images: what differs between two frames of one object.
NOISE = 0.1
# More images are not needed for a few thousand objects.
MAX_IMAGES = 2000
EMPTY_SCENE = -1

# A domain of CDC is cut into three visits.
NUM_SLOTS = 3
# The severities a domain climbs and descends in a ramp.
RAMP = (1, 2, 3, 4, 5, 4, 3, 2, 1)


class StreamBatch(NamedTuple):
    """One batch of a stream, arrays (B,)."""

    domains: Ints  # indices
    severities: npt.NDArray[np.float64]
    images: Ints  # indices within the domain; -1 is a scene without an object
    rounds: Ints  # 0 but for `lha`
    scored: bool = True  # all count but what leads up to the part that a stream is about


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """What a stream is made of.

    `csc` shows one domain after the other. In `cdc` domains recur in visits of random length, `mds`
    has all domains shuffled by sample, `lha` is `csc` in `rounds` rounds without a reset. `ramp` is
    as `csc`, but within a domain the severity climbs from 1 to 5 and descends again. In `recurring`
    the domains take turns, `visits` equal visits each. `recorded` has the images in list order,
    each of a domain of its own, as a camera met them; `recorded-one` the first recording, then
    `frames` frames of one class out of the last, scored on those. The others are a
    camera's, see the module.
    """

    kind: StreamKind
    num_domains: int
    order: Order = "list"  # see `image_order`; of the streams of a data set only
    severity: float = 5.0  # of every sample but those of a ramp
    batch_size: int = 64
    seed: int = 0
    delta: float = 1.0  # concentration of CDC's Dirichlet distribution
    rounds: int = 10
    visits: int = 3
    # Of the one thing of `parked`, the night of `day-night`, the one class of `recorded-one`.
    frames: int = 3000
    only_class: int | None = None  # of streams of one class; by default the seed chooses

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("stream", self.kind, STREAMS),
            ("order", self.order, get_args(Order)),
        ):
            if value not in choices:
                raise ConfigError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")
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


# What a stream's name may be followed by; `class` sets `only_class` of a `StreamPlan`.
STREAM_OPTIONS = ("delta", "rounds", "visits", "frames", "class")


def parse_stream(text: str, /) -> dict[str, Any]:
    """Read `NAME` or `NAME:key=value`: `cdc:delta=2`, `lha:rounds=3`, `one-after:class=7`.

    The fields of `StreamPlan`, `kind` among them. `ConfigError` if the name or a key is unknown, or
    a value is no number.
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
    if "class" in options:
        options["only_class"] = options.pop("class")
    return {"kind": kind, **options}


def cdc_segments(
    num_domains: int,
    images_per_domain: int,
    batch_size: int,
    delta: float,
    seed: int,
) -> list[tuple[int, int]]:
    """Visits of the continual dynamic change stream, as DPCore's CDC builds them.

    Each of the 3 x num_domains visits is a domain's index and a number of batches. Those of one
    domain add up to all its batches; one may be empty. `delta` is the concentration of the
    Dirichlet distribution; large values make the visits equally long. A domain's last batch may be
    short. The published number of batches, ``5000 // 64 + 1``, is rounded up here, which is the
    same unless the batch size divides the images.
    """
    # The legacy generator is the definition of the published stream.
    rng = np.random.RandomState(seed)
    shares = rng.dirichlet([delta] * NUM_SLOTS, num_domains)
    total = -(-images_per_domain // batch_size)
    cuts = (np.cumsum(shares, axis=1)[:, :-1] * total).astype(int)
    edges = np.pad(cuts, ((0, 0), (1, 1)), constant_values=((0, 0), (0, total)))
    lengths = np.diff(edges, axis=1)
    return [
        (int(domain), int(lengths[domain, slot]))
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
    """The batches of a stream; the same plan gives the same stream.

    The labels, (N,), are of the images, which are the same in every domain; K may be more classes
    than have images. Of what was recorded, `recorded`, (N,), has each image's domain, and
    `recordings` how many images each recording has. Batches of `mds` are all full but the last; all
    other streams start a new batch with every visit to a domain. Raises `ConfigError` as
    `image_order`, or if a recording lacks its domains.
    """
    rng = np.random.default_rng(plan.seed)
    if plan.kind.startswith("recorded"):
        if recorded is None:
            raise ConfigError(f"stream: {plan.kind} is for what a test:// source recorded")
        return _recorded_stream(plan, labels, recorded, recordings)
    if plan.is_camera:
        return _camera_stream(plan, labels, num_classes)
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
            batches += _cut(plan, domain, visit(), number=number)
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
        batches += _cut(plan, domain, rows)
    return batches


def _recurring(plan: StreamPlan, images: list[Ints]) -> list[StreamBatch]:
    """All domains in turn, `visits` times, each visit with the next part of the images."""
    parts = [np.array_split(order, plan.visits) for order in images]
    return [
        batch
        for number in range(plan.visits)
        for domain in range(plan.num_domains)
        for batch in _cut(plan, domain, parts[domain][number])
    ]


def _mds(plan: StreamPlan, images: Ints, *, rng: np.random.Generator) -> list[StreamBatch]:
    """All domains' samples in one random order."""
    domains = np.repeat(np.arange(plan.num_domains, dtype=np.int64), len(images))
    order = rng.permutation(len(domains))
    return _cut(plan, domains[order], np.tile(images, plan.num_domains)[order])


def _cut(
    plan: StreamPlan, domains: Ints | int, images: Ints, *, number: int = 0, scored: bool = True
) -> list[StreamBatch]:
    """Cut samples, of one domain or each of its own, into batches; the last may be short."""
    count = len(images)
    domains = np.broadcast_to(np.asarray(domains, dtype=np.int64), count)
    severities = np.full(count, float(plan.severity))
    if plan.kind == "ramp":
        step = np.arange(count) * len(RAMP) // max(count, 1)
        severities = np.asarray(RAMP, dtype=np.float64)[step]
    rounds = np.full(count, number, dtype=np.int64)
    return [
        StreamBatch(domains[rows], severities[rows], images[rows], rounds[rows], scored)
        for start in range(0, count, plan.batch_size)
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
    """Image indices of one visit to a domain, (M,) of N labels; everything random comes from `rng`.

    `list` is the data set's own order. `runs` shows 60 to 140 frames of one class, then of another,
    until every image was shown. `sorted` shows all of one class, then all of the next, classes in
    random order. `long-tailed` shuffles all images of one class, and of the others fewer and fewer,
    down to a hundredth, classes ranked as in `ranking`, by default in random order. `one-class`
    shows a single class, by default one drawn among those present. Another order, or a class
    without images, is a `ConfigError`.
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
    shares = IMBALANCE ** -np.linspace(0.0, 1.0, len(ranking))
    for label, share in zip(ranking, shares, strict=True):
        places = np.flatnonzero(shown == label)
        kept[places[: max(1, round(float(share) * len(places)))]] = True
    chosen: Ints = shuffled[kept]
    return chosen


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


class _Visit(NamedTuple):
    """Objects in one domain, and for how many frames each stays."""

    domain: int
    objects: Ints
    stay: int = STAY
    scored: bool = True


def noise_of(plan: StreamPlan, /) -> np.random.Generator | None:
    """Where the noise of a stream's frames comes from; None where frames have none."""
    return np.random.default_rng(plan.seed + 99) if plan.is_camera else None


def _camera_stream(
    plan: StreamPlan, labels: npt.NDArray[np.integer[Any]], num_classes: int, /
) -> list[StreamBatch]:
    """The batches of the stream of one of `CAMERA_STREAMS`, over images with labels, (N,).

    An image of -1 is a scene without an object. A batch is of one domain, but for `mixed`. If the
    class that was asked for has no images, or there are too few domains, it is a `ConfigError`.
    """
    rng = np.random.default_rng(plan.seed)
    chosen = np.random.default_rng(0).permutation(len(labels))[:MAX_IMAGES]
    needed = {"one-after": 2, "one-same": 2, "parked": 1, "day-night": 2}.get(plan.kind, 1)
    if plan.num_domains < needed:
        raise ConfigError(f"stream {plan.kind}: expected {needed} domains, got {plan.num_domains}")
    if plan.kind == "mixed":
        return _mixed(plan, chosen, rng)
    batches: list[StreamBatch] = []
    for visit in _visits(plan, labels[chosen], num_classes, rng):
        images = np.repeat(visit.objects, visit.stay)
        images = np.where(images == EMPTY_SCENE, EMPTY_SCENE, chosen[images])
        batches += _cut(plan, visit.domain, images, scored=visit.scored)
    return batches


def _recorded_stream(
    plan: StreamPlan,
    labels: npt.NDArray[np.integer[Any]],
    recorded: Ints,
    recordings: Sequence[int],
    /,
) -> list[StreamBatch]:
    """All frames in order; or the first recording, then one class out of the last, cycled."""
    everything = np.arange(len(labels), dtype=np.int64)
    if plan.kind == "recorded":
        return _cut(plan, recorded, everything)
    last = everything[len(labels) - recordings[-1] :]
    seen = np.bincount(labels[last])
    # The seeds take the classes in turn, the one seen most first.
    ranked = np.argsort(-seen, kind="stable")[: np.count_nonzero(seen)]
    one = ranked[plan.seed % len(ranked)] if plan.only_class is None else plan.only_class
    frames = last[labels[last] == one]
    if not len(frames):
        raise ConfigError(f"class: expected one that the recording shows, got {one}")
    before, shown = everything[: recordings[0]], np.resize(frames, plan.frames)
    return _cut(plan, recorded[before], before, scored=False) + _cut(plan, recorded[shown], shown)


def _visits(
    plan: StreamPlan,
    labels: npt.NDArray[np.integer[Any]],
    num_classes: int,
    rng: np.random.Generator,
) -> Iterator[_Visit]:
    """The objects of each domain, as indices among `labels`."""
    domains, classes = range(plan.num_domains), np.unique(labels)
    one = classes[plan.seed % len(classes)] if plan.only_class is None else plan.only_class
    ranking = IMBALANCE ** (-np.arange(num_classes) / max(num_classes - 1, 1))
    odds = ranking[rng.permutation(num_classes)][labels]
    pool = np.flatnonzero(labels == one)
    few = rng.permutation(classes)[: max(5, round(num_classes**0.5))]
    if plan.kind.startswith("one-") and not len(pool):
        raise ConfigError(f"class: expected one with images, got {one}")

    def shown(domain: int, *, scored: bool = True) -> _Visit:
        count = FEW_SAMPLES if plan.kind == "few-samples" else OBJECTS
        objects = rng.permutation(len(labels))[:count]
        if plan.kind == "tailed":
            objects = rng.choice(len(labels), count, p=odds / odds.sum())
        elif plan.kind == "one-class":
            objects = rng.choice(pool, count)
        elif plan.kind == "few":
            objects = rng.choice(np.flatnonzero(np.isin(labels, few)), count)
        return _Visit(domain, objects, scored=scored)

    if plan.kind in ("one-after", "one-same"):
        yield from (shown(domain, scored=False) for domain in domains[:-1])
        place = domains[-1] if plan.kind == "one-after" else domains[-2]
        yield _Visit(place, rng.choice(pool, ONE_CLASS_OBJECTS))
    elif plan.kind == "parked":
        yield from (shown(domain, scored=False) for domain in domains[:2])
        thing = rng.integers(len(labels), size=1)
        yield _Visit(domains[min(2, plan.num_domains - 1)], thing, stay=PARKED_FRAMES)
    elif plan.kind == "day-night":
        dawn = plan.num_domains // 2
        yield from (shown(domain, scored=False) for domain in domains[:dawn])
        yield _Visit(dawn, np.array([EMPTY_SCENE]), stay=plan.frames, scored=False)
        yield shown(dawn)
    else:
        yield from (shown(domain) for domain in domains)


def _mixed(plan: StreamPlan, chosen: Ints, rng: np.random.Generator) -> list[StreamBatch]:
    """As many objects as in a video, each in a domain drawn for it."""
    objects = np.concatenate(
        [rng.permutation(len(chosen))[:OBJECTS] for _ in range(plan.num_domains)]
    )
    domains = np.repeat(rng.integers(plan.num_domains, size=len(objects)), STAY)
    images = chosen[np.repeat(objects, STAY)]
    return _cut(plan, domains, images)
