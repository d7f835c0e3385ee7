"""`load`: a classifier that adapts, from one file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gain_core import UPDATE_EVERY, WARMUP_FRAMES, Config
from gain_core.errors import ConfigError
from gain_runtime.adapter import AdaptationStatus, Adapter
from gain_runtime.engine import AdaptiveEngine, Engine, NetworkEngine
from gain_runtime.files.adaptive import is_adaptive, load_adaptive
from gain_runtime.files.artifact import load_artifact
from gain_runtime.frames import Closing
from gain_runtime.sessions.session import Device, open_adaptive_session, open_session

Image = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """The prediction for one image, or for B of them.

    Attributes
    ----------
    label : str, or tuple of B str
        Name of the most probable class.
    probs, source : array, (K,) or (B, K) float32
        The adapted probabilities, and those of the frozen network.
    strength : float, or array (B,) float32
        Strength of the correction, in [0, 1]; at 0 `probs` equals `source`.
    """

    label: str | tuple[str, ...]
    probs: npt.NDArray[np.float32]
    source: npt.NDArray[np.float32]
    strength: float | npt.NDArray[np.float32]


class Classifier(Closing):
    """A classifier that adapts to its stream; `load` opens one. Use it as a context manager.

    Parameters
    ----------
    engine : Engine
        Network and adaptation.
    resources : ExitStack, optional
        Closed with the classifier.
    """

    def __init__(self, engine: Engine, /, *, resources: ExitStack | None = None) -> None:
        self._adapter = Adapter(engine, preprocess_threads=None)
        self._resources = resources or ExitStack()

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the K classes."""
        return tuple(self._adapter.artifact.manifest.labels)

    def step(self, images: Image | Sequence[Image], /, *, learn: bool = True) -> Result:
        """Classify an image or a batch, and learn from it.

        Parameters
        ----------
        images : array, (H, W, 3) uint8 RGB, or a sequence of B of them
            In the order in which they were taken; sizes may differ.
        learn : bool, optional
            Whether the state may change.

        Returns
        -------
        Result
            Of one image if one was given, else of B.

        Raises
        ------
        ArrayError
            If an image has another shape or dtype. No error changes the state.
        EngineError
            If the forward pass fails.
        NumericsError
            If the network returned NaN or infinity.
        """
        single = getattr(images, "ndim", 0) == 3
        batch = self._adapter.step(list(images[None] if single else images), learn=learn)  # type: ignore[call-overload]
        names = tuple(self.labels[index] for index in np.argmax(batch.probs, axis=1))
        if single:
            return Result(
                label=names[0],
                probs=batch.probs[0],
                source=batch.source_probs[0],
                strength=float(batch.strength[0]),
            )
        return Result(
            label=names, probs=batch.probs, source=batch.source_probs, strength=batch.strength
        )

    def status(self) -> AdaptationStatus:
        """The state in a few numbers.

        Returns
        -------
        AdaptationStatus
        """
        return self._adapter.status()

    def freeze(self) -> None:
        """Stop learning and keep predicting with the current state."""
        self._adapter.freeze()

    def unfreeze(self) -> None:
        """Learn again."""
        self._adapter.unfreeze()

    def reset(self) -> None:
        """Return to the source state and drop pending frames."""
        self._adapter.reset()

    def save(self, path: str | Path, /) -> None:
        """Learn from the pending frames and write the state; a failure leaves no partial file.

        Parameters
        ----------
        path : str or Path
            Replaced if it exists.

        Raises
        ------
        ArtifactError
            If it cannot be written or holds NaN or infinity.
        """
        self._adapter.save_state(path)

    def load_state(self, path: str | Path, /) -> None:
        """Continue from a saved state; the current state is dropped.

        Parameters
        ----------
        path : str or Path
            Written by `save`.

        Raises
        ------
        ArtifactError
            If it is missing, damaged, or was learned on another artifact.
        ConfigError
            If it was learned with another config.
        """
        self._adapter.load_state(path)

    def close(self) -> None:
        """Release the network; may be called twice."""
        self._adapter.close()
        self._resources.close()


def load(
    path: str | Path,
    /,
    *,
    device: Device = "cpu",
    config: Config | None = None,
    update_every: int | None = None,
    warmup_frames: int | None = None,
    state: str | Path | None = None,
    num_threads: int | None = None,
) -> Classifier:
    """Open an exported file as a classifier that adapts.

    Parameters
    ----------
    path : str or Path
        An artifact of `gain-export`, or an adaptive file.
    device : {"cpu", "cuda", "auto", "tensorrt"}, optional
        As for `open_session`; `tensorrt` runs no adaptive files.
    config : Config, optional
        Default: `gain_core.preset("shift")`. Fixed in an adaptive file, so not allowed with one.
    update_every, warmup_frames : int, optional
        Frames between two updates, and before the first one; defaults as for `Gain`. An adaptive
        file fixes `warmup_frames` and the least `update_every`.
    state : str or Path, optional
        A state file, as `Classifier.save` writes it, to continue from.
    num_threads : int, optional
        CPU threads within one operator; None lets the library choose.

    Returns
    -------
    Classifier
        Close it, or use it as a context manager.

    Raises
    ------
    ArtifactError
        If a file is missing, damaged, or of the wrong kind, or the state belongs to another
        artifact.
    BackendUnavailableError
        If the device cannot be used.
    ConfigError
        If a setting is out of its range or fixed in the file, the state was learned with another
        config, or the method reads features and the artifact has none.
    EngineError
        If the network cannot be loaded on the device.
    """
    resources = ExitStack()
    with resources:
        engine = open_engine(
            path,
            resources,
            device=device,
            config=config,
            update_every=update_every,
            warmup_frames=warmup_frames,
            num_threads=num_threads,
        )
        classifier = Classifier(engine, resources=resources.pop_all())
        try:
            if state is not None:
                classifier.load_state(state)
        except BaseException:
            classifier.close()
            raise
    return classifier


def open_engine(
    path: str | Path,
    resources: ExitStack,
    /,
    *,
    device: Device = "cpu",
    config: Config | None = None,
    update_every: int | None = None,
    warmup_frames: int | None = None,
    num_threads: int | None = None,
    allow_host_code: bool = False,
) -> Engine:
    """Open the network of a file together with its adaptation; `resources` closes the session.

    The other parameters and the errors are those of `load` and `open_session`.
    """
    if not is_adaptive(path):
        session = open_session(
            load_artifact(path),
            device=device,
            num_threads=num_threads,
            allow_host_code=allow_host_code,
        )
        return NetworkEngine(
            resources.enter_context(session),
            config,
            update_every=UPDATE_EVERY if update_every is None else update_every,
            warmup_frames=WARMUP_FRAMES if warmup_frames is None else warmup_frames,
        )
    for name, value in (("config", config), ("warmup_frames", warmup_frames)):
        if value is not None:
            raise ConfigError(
                f"{name}: fixed in {path}, an adaptive file; leave it out, or make the file "
                "again with gain-export --adaptive"
            )
    adaptive = open_adaptive_session(load_adaptive(path), device=device, num_threads=num_threads)
    engine = AdaptiveEngine(resources.enter_context(adaptive))
    if update_every is not None:
        engine.learner.update_every = update_every
    return engine
