"""Frozen features of every image of a domain: computed once, memory-mapped afterwards.

An entry of the cache is two files named after the hash of its key: `HASH.npy`, an (N, D + K)
float32 array of features beside logits, and `HASH.json` with the key and the array's checksum.
While an entry is being computed its files are called `HASH.partial.npy` and `HASH.partial.json`;
the latter holds a checksum per finished chunk, and a run that was cut off goes on from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.eval_input import Normalise, Outputs
from gain_apps.evaluation.image_data import CLEAN, Image, ImageData
from gain_core import __version__
from gain_core.errors import ArtifactError, ConfigError, GainError, NumericsError
from gain_runtime.files.manifest import Preprocess
from gain_runtime.files.paths import exists, write_atomically
from gain_runtime.preprocess import preprocess
from gain_runtime.sessions.session import Session
from gain_scenes import corruptions
from gain_scenes.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt, image_rng

try:
    import fcntl
except ImportError:  # Windows: two runs that fill one entry at once are not kept apart there
    fcntl = None  # type: ignore[assignment]

CHUNK_ROWS = 256

Floats = npt.NDArray[np.float32]
Mapped: TypeAlias = "np.memmap[Any, np.dtype[np.float32]]"
# (first row, end row) to features (rows, D) and logits (rows, K).
Compute = Callable[[int, int], tuple[Floats, Floats]]


class Cell(NamedTuple):
    """One view of one domain at one severity: what an entry of the cache is of."""

    domain: str
    severity: float
    view: int = 0


# (cell, first row, end row) to features (rows, D) and logits (rows, K).
Rows = Callable[[Cell, int, int], tuple[Floats, Floats]]


def default_cache_dir() -> Path:
    """`gain-edge/features` in the user's cache folder; XDG_CACHE_HOME is respected."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "gain-edge" / "features"


def cache_folder(cache: str | Path | None, /) -> Path:
    """This machine's folder for features: the one given, else (or beside a URL) the default."""
    return default_cache_dir() if cache is None or "://" in str(cache) else Path(cache)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureCache:
    """Entries of one network's width, D + K, in a folder that is made when first needed."""

    folder: Path
    feature_dim: int
    num_classes: int

    def entry(self, key: Mapping[str, Any], num_rows: int, /) -> Entry:
        """The files of an entry, whether or not they are there."""
        return Entry(self.folder, key, shape=(num_rows, self.feature_dim + self.num_classes))

    def fetch(
        self,
        key: Mapping[str, Any],
        num_rows: int,
        /,
        *,
        compute: Compute,
        on_rows: Callable[[], None] | None = None,
    ) -> Outputs:
        """Open an entry, mapped read-only, after computing what of it is missing.

        The key has plain JSON values: everything the N rows depend on. `compute` makes rows
        `[first, end)` of missing chunks; `on_rows` is called once per row. A file of the entry that
        is damaged or cannot be written is an `ArtifactError` that names it.
        """
        entry = self.entry(key, num_rows)
        if not entry.is_whole:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with _locked(entry.lock):
                    # Another process may have completed it while this one waited.
                    if not entry.is_whole:
                        self._complete(entry, compute, on_rows)
            except OSError as err:
                # Ours are about something else: a damaged image, an entry that is no entry.
                if isinstance(err, GainError):
                    raise
                raise ArtifactError(
                    f"{entry.partial}: cannot be written ({err.strerror or err}); "
                    "choose another folder with --cache"
                ) from err
        elif on_rows is not None:
            for _ in range(num_rows):
                on_rows()
        array = entry.open_finished()
        return Outputs(
            features=array[:, : self.feature_dim],
            logits=array[:, self.feature_dim :],
            name=entry.name,
        )

    def _complete(self, entry: Entry, compute: Compute, on_rows: Callable[[], None] | None) -> None:
        """Compute the missing chunks, then give the entry its final name."""
        num_rows = entry.shape[0]
        array, checksums = entry.open_partial()
        for start in range(0, num_rows, CHUNK_ROWS):
            end = min(start + CHUNK_ROWS, num_rows)
            if start // CHUNK_ROWS >= len(checksums):
                features, logits = compute(start, end)
                array[start:end, : self.feature_dim] = features
                array[start:end, self.feature_dim :] = logits
                array.flush()
                checksums.append(_checksum(array[start:end]))
                entry.note_progress(checksums)
            if on_rows is not None:
                for _ in range(start, end):
                    on_rows()
        del array
        entry.finish()


class Entry:
    """The files of one entry, named after the hash of its key and shape."""

    def __init__(self, folder: Path, key: Mapping[str, Any], /, *, shape: tuple[int, int]) -> None:
        self.key = dict(key)
        self.shape = shape
        text = json.dumps([self.key, list(shape)], sort_keys=True)
        self.name = name = hashlib.sha256(text.encode()).hexdigest()[:32]
        self.array = folder / f"{name}.npy"
        self.sidecar = folder / f"{name}.json"
        self.partial = folder / f"{name}.partial.npy"
        self.progress = folder / f"{name}.partial.json"
        self.lock = folder / f"{name}.partial.lock"

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is missing here."""
        return exists(self.sidecar)

    def open_finished(self) -> Floats:
        """The finished array, its checksum verified."""
        record = _read_json(self.sidecar)
        if record.get("key") != self.key:
            raise _damaged(self.sidecar, "it belongs to another key")
        array = self._mapped(self.array, mode="r")
        if _checksum(array) != record.get("sha256"):
            raise _damaged(self.array, "its checksum is not the one in its .json file")
        return array

    def open_partial(self) -> tuple[Mapped, list[str]]:
        """The array under construction, and a checksum for each chunk in it."""
        if not (exists(self.partial) and exists(self.progress)):
            # A file of the whole size first: a full disk is found before hours of work.
            array = np.lib.format.open_memmap(
                self.partial, mode="w+", dtype=np.float32, shape=self.shape
            )
            return array, []
        checksums = _read_json(self.progress).get("chunks")
        if not isinstance(checksums, list):
            raise _damaged(self.progress, "it has no list of chunks")
        array = self._mapped(self.partial, mode="r+")
        for number, checksum in enumerate(checksums):
            rows = array[number * CHUNK_ROWS : (number + 1) * CHUNK_ROWS]
            if _checksum(rows) != checksum:
                raise _damaged(self.partial, f"chunk {number} does not have its checksum")
        return array, checksums

    def note_progress(self, checksums: list[str]) -> None:
        """Record the finished chunks."""
        record = {"key": self.key, "chunks": checksums}
        write_atomically(self.progress, json.dumps(record).encode())

    def finish(self) -> None:
        """Rename the array; the sidecar comes last and makes the entry valid."""
        checksum = _checksum(self._mapped(self.partial, mode="r"))
        with self.partial.open("rb+") as file:
            os.fsync(file.fileno())
        self.partial.replace(self.array)
        record = {"key": self.key, "shape": list(self.shape), "sha256": checksum}
        write_atomically(self.sidecar, (json.dumps(record, indent=1) + "\n").encode())
        self.progress.unlink(missing_ok=True)
        self.lock.unlink(missing_ok=True)

    def _mapped(self, path: Path, *, mode: str) -> Mapped:
        """A file of the entry's shape as an array."""
        try:
            array = np.load(path, mmap_mode=mode, allow_pickle=False)  # type: ignore[arg-type]
        except (OSError, ValueError, EOFError) as err:
            raise _damaged(path, str(err)) from err
        if array.shape != self.shape or array.dtype != np.float32:
            raise _damaged(path, f"expected {self.shape} float32, got {array.shape} {array.dtype}")
        mapped: Mapped = array
        return mapped


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone with an entry: the processes of one machine share its files."""
    if fcntl is None:
        yield
        return
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _checksum(array: Floats) -> str:
    """SHA-256 of the array's values."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError) as err:
        raise _damaged(path, str(err)) from err
    if not isinstance(record, dict):
        raise _damaged(path, "expected a JSON object")
    return record


def _damaged(path: Path, reason: str) -> ArtifactError:
    return ArtifactError(f"{path}: damaged cache file ({reason}); delete it and run again")


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
BATCH_ROWS = 32


def normalised(spec: Preprocess, normalise: Normalise, /) -> Preprocess:
    """The artifact's preprocessing with another mean and deviation, or a `ConfigError`."""
    if normalise == "timm":
        return spec
    if normalise == "unit":
        return replace(spec, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    if normalise != "imagenet":
        raise ConfigError(
            f"normalise: expected {', '.join(get_args(Normalise))}, got {normalise!r}"
        )
    if spec.channel_order == "BGR":
        return replace(spec, mean=IMAGENET_MEAN[::-1], std=IMAGENET_STD[::-1])
    return replace(spec, mean=IMAGENET_MEAN, std=IMAGENET_STD)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureMaker:
    """Makes and caches the outputs of one network on one data set.

    The seed, of corruptions and views, is the same for all streams, so that their seeds share
    features.
    """

    session: Session
    data: ImageData
    cache: FeatureCache
    normalise: Normalise = "timm"
    seed: int = 0

    def outputs(
        self,
        domain: str,
        severity: float,
        /,
        *,
        view: int = 0,
        on_rows: Callable[[], None] | None = None,
        compute: Rows | None = None,
    ) -> Outputs:
        """Features and logits of all images in one domain, from the cache where they are.

        The domain is `clean`, which ignores the severity, a corruption, or one of the data's own;
        another is a `ConfigError`. `compute` makes rows of a cell; by default `rows`, here. Raises
        `ArtifactError`, `StreamError` or `NumericsError` if a cache file or an image is damaged, or
        the network's outputs are not finite.
        """
        cell, make = self.cell(domain, severity, view=view), compute or self.rows
        return self.cache.fetch(
            self.key(cell),
            len(self.data.labels),
            compute=lambda start, end: make(cell, start, end),
            on_rows=on_rows,
        )

    def cell(self, domain: str, severity: float, /, *, view: int = 0) -> Cell:
        """What is computed for a domain; `ConfigError` if that is unknown."""
        generated = self.data.domains is None
        known = (CLEAN, *CORRUPTIONS, *EXTRA_CORRUPTIONS) if generated else self.data.domains or ()
        if domain not in known:
            raise ConfigError(f"domains: expected some of {', '.join(known)}, got {domain}")
        return Cell(domain, 0.0 if generated and domain == CLEAN else severity, view)

    def rows(self, cell: Cell, start: int, end: int, /) -> tuple[Floats, Floats]:
        """Forward passes over the images `[start, end)`: features and logits, float32."""
        features, logits = [], []
        for first in range(start, end, BATCH_ROWS):
            indices = range(first, min(first + BATCH_ROWS, end))
            pixel_values = [
                self.pixel_values(index, cell.domain, cell.severity, view=cell.view)
                for index in indices
            ]
            result = self.session.infer(np.stack(pixel_values))
            logits.append(np.asarray(result.logits))
            # Where there are logits only they stand in the features' place.
            features.append(logits[-1] if result.features is None else np.asarray(result.features))
        made = np.concatenate(features), np.concatenate(logits)
        if not all(np.isfinite(array).all() for array in made):
            raise NumericsError(
                f"{self.session.artifact.path}: expected finite features and logits, got NaN or "
                f"infinity on {cell.domain}; verify the artifact"
            )
        return made

    def pixel_values(
        self, index: int, domain: str, severity: float, *, view: int = 0
    ) -> npt.NDArray[np.float32]:
        """One image as the network takes it.

        Corruptions are applied at the network's input size, as ImageNet-C's were. Images of that
        size already (ImageNet-C's 224 px files) are not resized or cropped again.
        """
        spec = normalised(self.session.artifact.manifest.preprocess, self.normalise)
        image = self.data.load(index, domain, severity)
        image = make_view(image, view, seed=self.seed, index=index)
        whole = replace(spec, crop_fraction=1.0)
        if self.data.domains is None and domain != CLEAN:
            sized = _resized(image, spec)
            row = view * len(self.data.labels) + index
            rng = image_rng(self.seed, row, domain)
            return preprocess(corrupt(sized, domain, severity, rng=rng), whole)
        fits = image.shape[:2] == (spec.height_px, spec.width_px)
        return preprocess(np.ascontiguousarray(image), whole if fits else spec)

    def entry(self, cell: Cell, /) -> Entry:
        """The files of a cell in the cache."""
        return self.cache.entry(self.key(cell), len(self.data.labels))

    def key(self, cell: Cell, /) -> dict[str, Any]:
        """Everything the features of a cell depend on, as plain JSON values."""
        domain, severity, view = cell
        generated = self.data.domains is None and domain != CLEAN
        return {
            "artifact": self.session.artifact.sha256,
            "provider": self.session.provider,
            "data": self.data.fingerprint(domain, severity),
            "domain": domain,
            "severity": severity,
            "view": view,
            "normalise": self.normalise,
            "seed": self.seed if generated or view else 0,
            "corruptions": code_hash(corruptions) if generated else "",
            "version": __version__,
        }


def _resized(image: Image, spec: Preprocess) -> Image:
    """Resized and cropped to the network's input, still in 8 bits."""
    plain = replace(spec, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), channel_order="RGB")
    planes = preprocess(np.ascontiguousarray(image), plain)
    levels: Image = np.rint(planes * 255.0).astype(np.uint8)
    return np.ascontiguousarray(np.moveaxis(levels, 0, 2))


def code_hash(*packages: ModuleType) -> str:
    """Hash of the code that draws: other code draws other pictures."""
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted(Path(package.__file__ or "").parent.glob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


# Of both sides: a crop keeps the aspect ratio and at least half of the area.
LEAST_SHARE = 0.75


def make_view(image: Image, number: int, /, *, seed: int, index: int) -> Image:
    """One view of an image, (H, W, 3) uint8 RGB, of the same memory.

    0 is the image itself; odd numbers are mirrored. Both sides are at least `LEAST_SHARE` of the
    image's; the run's seed, the image's index and the number decide the crop.
    """
    if number == 0:
        return image
    rng = np.random.default_rng(np.random.SeedSequence((seed, index, number)))
    share = rng.uniform(LEAST_SHARE, 1.0)
    height, width = (max(1, round(side * share)) for side in image.shape[:2])
    top = int(rng.integers(image.shape[0] - height + 1))
    left = int(rng.integers(image.shape[1] - width + 1))
    crop = image[top : top + height, left : left + width]
    return crop[:, ::-1] if number % 2 else crop
