"""What a camera sees: objects that stay for a while, few of the classes, one thing for hours.

Every image stands for an object that stays for twelve frames with a little noise on its features;
the method is given sixteen frames at a time.

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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.streams import IMBALANCE, Ints, StreamBatch, StreamPlan, cut
from gain_core.errors import ConfigError

__all__ = ["EMPTY_SCENE", "NOISE", "camera_stream", "noise_of", "recorded_stream"]

# Frames an object stays; objects a domain; objects of the one class after all others.
STAY, OBJECTS, ONE_CLASS_OBJECTS = 12, 170, 250
FEW_SAMPLES = 20
PARKED_FRAMES = 10_000
# Of each feature's deviation over clean images: what differs between two frames of one object.
NOISE = 0.1
# More images are not needed for a few thousand objects.
MAX_IMAGES = 2000
EMPTY_SCENE = -1


class Visit(NamedTuple):
    """Objects in one domain, and for how many frames each stays."""

    domain: int
    objects: Ints
    stay: int = STAY
    scored: bool = True


def noise_of(plan: StreamPlan, /) -> np.random.Generator | None:
    """Where the noise of a stream's frames comes from; None where frames have none."""
    return np.random.default_rng(plan.seed + 99) if plan.is_camera else None


def camera_stream(
    plan: StreamPlan, labels: npt.NDArray[np.integer[Any]], /, *, num_classes: int
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
        batches += cut(plan, visit.domain, images, scored=visit.scored)
    return batches


def recorded_stream(
    plan: StreamPlan,
    labels: npt.NDArray[np.integer[Any]],
    recorded: Ints,
    recordings: Sequence[int],
    /,
) -> list[StreamBatch]:
    """All frames in order; or the first recording, then one class out of the last, cycled."""
    everything = np.arange(len(labels), dtype=np.int64)
    if plan.kind == "recorded":
        return cut(plan, recorded, everything)
    last = everything[len(labels) - recordings[-1] :]
    seen = np.bincount(labels[last])
    # The seeds take the classes in turn, the one seen most first.
    ranked = np.argsort(-seen, kind="stable")[: np.count_nonzero(seen)]
    one = ranked[plan.seed % len(ranked)] if plan.only_class is None else plan.only_class
    frames = last[labels[last] == one]
    if not len(frames):
        raise ConfigError(f"class: expected one that the recording shows, got {one}")
    before, shown = everything[: recordings[0]], np.resize(frames, plan.frames)
    return cut(plan, recorded[before], before, scored=False) + cut(plan, recorded[shown], shown)


def _visits(
    plan: StreamPlan,
    labels: npt.NDArray[np.integer[Any]],
    num_classes: int,
    rng: np.random.Generator,
) -> Iterator[Visit]:
    """The objects of each domain, as indices among `labels`."""
    domains, classes = range(plan.num_domains), np.unique(labels)
    one = classes[plan.seed % len(classes)] if plan.only_class is None else plan.only_class
    ranking = IMBALANCE ** (-np.arange(num_classes) / max(num_classes - 1, 1))
    odds = ranking[rng.permutation(num_classes)][labels]
    pool = np.flatnonzero(labels == one)
    few = rng.permutation(classes)[: max(5, round(num_classes**0.5))]
    if plan.kind.startswith("one-") and not len(pool):
        raise ConfigError(f"class: expected one with images, got {one}")

    def shown(domain: int, *, scored: bool = True) -> Visit:
        count = FEW_SAMPLES if plan.kind == "few-samples" else OBJECTS
        objects = rng.permutation(len(labels))[:count]
        if plan.kind == "tailed":
            objects = rng.choice(len(labels), count, p=odds / odds.sum())
        elif plan.kind == "one-class":
            objects = rng.choice(pool, count)
        elif plan.kind == "few":
            objects = rng.choice(np.flatnonzero(np.isin(labels, few)), count)
        return Visit(domain, objects, scored=scored)

    if plan.kind in ("one-after", "one-same"):
        yield from (shown(domain, scored=False) for domain in domains[:-1])
        place = domains[-1] if plan.kind == "one-after" else domains[-2]
        yield Visit(place, rng.choice(pool, ONE_CLASS_OBJECTS))
    elif plan.kind == "parked":
        yield from (shown(domain, scored=False) for domain in domains[:2])
        thing = rng.integers(len(labels), size=1)
        yield Visit(domains[min(2, plan.num_domains - 1)], thing, stay=PARKED_FRAMES)
    elif plan.kind == "day-night":
        dawn = plan.num_domains // 2
        yield from (shown(domain, scored=False) for domain in domains[:dawn])
        yield Visit(dawn, np.array([EMPTY_SCENE]), stay=plan.frames, scored=False)
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
    return cut(plan, domains, images)
