"""An adaptive file in ONNX Runtime, with the state kept where the graph runs.

The state lies in two sets of buffers that change places with each pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnxruntime

from gain_core import Config, Method, Prediction
from gain_core._arrays import Array
from gain_core.errors import ArrayError, ConfigError, EngineError, NumericsError, one_line
from gain_core.records import arrays_of, refuse_foreign
from gain_runtime.files.adaptive import PENDING, AdaptiveArtifact, load_adaptive
from gain_runtime.frames import Closing
from gain_runtime.sessions.onnx import (
    CPU_PROVIDER,
    CUDA_PROVIDER,
    RUN_ERRORS,
    open_native,
)
from gain_runtime.sessions.session import check_input


def _check_inputs(
    inputs: Sequence[Any], artifact: AdaptiveArtifact, /, *, fixed_batch: int | None
) -> int:
    """Refuse a batch that the graph cannot read."""
    names = artifact.input_names
    if len(inputs) != len(names):
        raise ArrayError(
            f"{artifact.path}: expected {len(names)} arrays ({', '.join(names)}), got {len(inputs)}"
        )
    batch_size = fixed_batch
    for name, array, shape in zip(names, inputs, artifact.input_shapes, strict=True):
        batch_size = check_input(name, array, (batch_size, *shape))
    assert batch_size is not None
    return batch_size


# What a call copies to the host; everything else stays where it is.
PREDICTED = ("probs", "log_probs", "strength", "gain", "source_log_probs", "finite")

Floats = npt.NDArray[np.float32]
_Buffers: TypeAlias = "dict[str, onnxruntime.OrtValue]"


class AdaptiveBinding:
    """A loaded adaptive graph with its state, where the graph's provider runs.

    A call reads one set of the state's buffers and writes the other; `advance` lets them change
    places, so that a call that is not followed by it has changed nothing. ONNX Runtime owns the
    buffers, which therefore need no CuPy.
    """

    def __init__(self, native: Any, artifact: AdaptiveArtifact, provider: str, /) -> None:
        self._native = native
        self._artifact = artifact
        self._place = "cuda" if provider == CUDA_PROVIDER else "cpu"
        # On the device as well: the graph reads the flag there, and a copy would be waited for.
        self._flags = {flag: self._placed(np.array(flag)) for flag in (False, True)}
        self._names = [*(item.next_name for item in artifact.state), *PREDICTED]
        self._sets: tuple[_Buffers, _Buffers] = ({}, {})
        self._current = 0
        self._bound: dict[tuple[int, bool], Any] = {}
        self.replace({item.field: item.zeros() for item in artifact.state})

    def run(self, inputs: Sequence[Floats], /, *, update: bool) -> dict[str, npt.NDArray[Any]]:
        """Call the graph once on checked inputs, (B, ...) float32 with B >= 1, and wait for it.

        With `update` the other set of buffers receives a new state, else none is written. Returns
        the outputs named in `PREDICTED`, NumPy arrays of their own memory.
        """
        binding = self._binding(update)
        for name, array in zip(self._artifact.input_names, inputs, strict=True):
            binding.bind_cpu_input(name, array)
        for name in PREDICTED:
            binding.bind_output(name, "cpu")  # anew, or the last batch's size would be kept
        self._native.run_with_iobinding(binding)
        outputs = dict(zip(self._names, binding.get_outputs(), strict=True))
        return {name: outputs[name].numpy() for name in PREDICTED}

    def advance(self) -> None:
        """Take the state that the last call with `update` has written."""
        self._current = 1 - self._current

    def read(self, field: str, /) -> npt.NDArray[Any]:
        """Copy one tensor of the state, by its `StateSpec.field`, to the host."""
        return np.array(self._sets[self._current][field].numpy())

    def replace(self, arrays: Mapping[str, npt.NDArray[Any]], /) -> None:
        """Put copies of these arrays, every tensor by its field, in the state's place."""
        self._bound = {}
        self._sets = (self._buffers(arrays), self._buffers(arrays))
        self._current = 0

    def _binding(self, update: bool) -> Any:
        """The state's buffers as inputs and outputs; made once per direction.

        Without an update the state is its own output: the graph then passes every tensor through,
        and ONNX Runtime copies nothing where both are one buffer.
        """
        key = (self._current, update)
        if key not in self._bound:
            binding = self._native.io_binding()
            old = self._sets[self._current]
            new = self._sets[1 - self._current] if update else old
            for item in self._artifact.state:
                binding.bind_ortvalue_input(item.name, old[item.field])
                binding.bind_ortvalue_output(item.next_name, new[item.field])
            binding.bind_ortvalue_input("update", self._flags[update])
            self._bound[key] = binding
        return self._bound[key]

    def _buffers(self, arrays: Mapping[str, npt.NDArray[Any]]) -> _Buffers:
        """New buffers with these values."""
        return {
            item.field: self._placed(np.array(arrays[item.field], dtype=item.dtype, order="C"))
            for item in self._artifact.state
        }

    def _placed(self, array: npt.NDArray[Any]) -> onnxruntime.OrtValue:
        """A copy where the graph runs, in memory of ONNX Runtime's."""
        return onnxruntime.OrtValue.ortvalue_from_numpy(array, self._place, 0)


class AdaptiveSession(Closing):
    """Network and adaptation in one call: the methods of `Gain`, on the inputs of the file.

    The device holds two sets of state buffers: a step reads one and writes the other, then they
    swap. A step copies only the prediction to the host; the state is copied on request.

    Parameters
    ----------
    artifact : AdaptiveArtifact, str or Path
        A path is loaded and checked first.
    provider : str, optional
        ONNX Runtime's name of the execution provider.
    num_threads : int, optional
        Threads within one operator; None lets ONNX Runtime choose.

    Raises
    ------
    ArtifactError
        If the path is no adaptive file.
    BackendUnavailableError
        If the provider cannot be used on this machine.
    ConfigError
        If `num_threads` is below 1.
    EngineError
        If ONNX Runtime cannot load the graph.
    """

    def __init__(
        self,
        artifact: AdaptiveArtifact | str | Path,
        /,
        *,
        provider: str = CPU_PROVIDER,
        num_threads: int | None = None,
    ) -> None:
        if not isinstance(artifact, AdaptiveArtifact):
            artifact = load_adaptive(artifact)
        self._artifact = artifact
        native, self._fixed_batch = open_native(artifact.path, provider, num_threads)
        self._provider = provider
        self._frozen = False
        # The graph counts as well; asking it would wait for the device at every batch.
        self._frames = self._pending_frames = 0
        self._update_every = artifact.update_every
        # Frames since the last batch that the graph was given to learn from.
        self._passed = 0
        self._bound: AdaptiveBinding | None = AdaptiveBinding(native, artifact, provider)

    @property
    def artifact(self) -> AdaptiveArtifact:
        """The loaded file."""
        return self._artifact

    @property
    def provider(self) -> str:
        """The execution provider really in use, as ONNX Runtime names it."""
        return self._provider

    @property
    def method(self) -> Method[Any]:
        """The method that the graph computes, on NumPy."""
        return self._artifact.method

    @property
    def config(self) -> Config:
        """The settings fixed in the graph."""
        return self._artifact.config

    @property
    def update_every(self) -> int:
        """Frames between two updates of the state; may be raised while a stream runs.

        The file fixes the initial value, which is also the least. The graph holds only as many
        pending frames as it was made for; with a larger value the frames beyond that are predicted
        but not learned from.

        Raises
        ------
        ConfigError
            If it is set to fewer frames than the file fixes.
        """
        return self._update_every

    @update_every.setter
    def update_every(self, frames: int) -> None:
        least = self._artifact.update_every
        if frames < least:
            raise ConfigError(
                f"update_every: expected at least {least}, the value fixed in "
                f"{self._artifact.path}, got {frames}; make the file again with gain-export "
                "--adaptive --set update-every=N"
            )
        self._update_every = frames

    @property
    def warmup_frames(self) -> int:
        """Frames before the first update."""
        return self._artifact.warmup_frames

    @property
    def frozen(self) -> bool:
        """Whether learning is stopped."""
        return self._frozen

    @property
    def frames(self) -> int:
        """Frames the state has learned from (pending ones not counted)."""
        return self._frames

    @property
    def pending_frames(self) -> int:
        """Frames that were predicted and not yet learned from."""
        return self._pending_frames

    @property
    def state(self) -> Any:
        """The method's state as of the last update, copied to the host as NumPy arrays.

        Raises
        ------
        EngineError
            If the session is closed.
        """
        fresh = self.method.init_state()
        return type(fresh)(**self._read(arrays_of(fresh)))

    def summary(self) -> dict[str, Array]:
        """See `Method.summary`; copies the state to the host.

        Raises
        ------
        EngineError
            If the session is closed.
        """
        return self.method.summary(self.state)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Every state tensor, pending evidence included, copied to the host.

        Returns
        -------
        dict of str to array
            By field of the file's state.

        Raises
        ------
        EngineError
            If the session is closed.
        """
        return self._read(item.field for item in self._artifact.state)

    def predict(self, *inputs: Floats) -> Prediction:
        """Predict a batch; the state does not change.

        Parameters
        ----------
        *inputs : arrays, float32, C-contiguous
            `pixel_values` (B, 3, height_px, width_px). For a file without a network: `logits`
            (B, K), after `features` (B, D) if the method reads them.

        Returns
        -------
        Prediction
            NumPy arrays that no later batch overwrites.

        Raises
        ------
        ArrayError
            If an input has another type, shape or layout.
        EngineError
            If the session is closed or ONNX Runtime fails; the state is untouched.
        NumericsError
            If an input or the network's result holds NaN or infinity; the state is untouched.
        """
        return self._run(inputs, update=False)

    def step(self, *inputs: Floats) -> Prediction:
        """Predict a batch, then learn from it, now or once `update_every` frames are pending.

        Parameters
        ----------
        *inputs : arrays, float32, C-contiguous
            As for `predict`.

        Returns
        -------
        Prediction
            As `Gain.step`: made before the update.

        Raises
        ------
        ArrayError, EngineError, NumericsError
            As `predict`.
        """
        return self._run(inputs, update=not self._frozen)

    def flush(self) -> None:
        """Learn from the pending frames now, on the host.

        Raises
        ------
        EngineError
            If frames are pending and the session is closed.
        """
        if not self._pending_frames:
            return
        artifact = self._artifact
        capacity = max(artifact.update_every, artifact.warmup_frames) - 1
        empty = self.method.no_evidence(capacity)
        fields = list(arrays_of(empty))
        waiting = self._read(PENDING + field for field in fields)
        evidence = type(empty)(**dict(zip(fields, waiting.values(), strict=True)))
        state = self.method.update(evidence, self.state)
        self.load_state(state, frames=self._frames + self._pending_frames)

    def reset(self) -> None:
        """Return to the source state and drop pending frames.

        Raises
        ------
        EngineError
            If the session is closed.
        """
        self._replace({item.field: item.zeros() for item in self._artifact.state}, frames=0)

    def freeze(self) -> None:
        """Stop learning and keep predicting with the current state; pending frames are kept."""
        self._frozen = True

    def unfreeze(self) -> None:
        """Learn again."""
        self._frozen = False

    def load_state(self, state: Any, /, *, frames: int = 0) -> None:
        """Continue from a state of the same method and network; pending frames are dropped.

        Parameters
        ----------
        state : record
            NumPy arrays; copied.
        frames : int
            Frames that `state` has learned from.

        Raises
        ------
        ArrayError
            If it belongs to another method or network.
        EngineError
            If the session is closed.
        """
        refuse_foreign(self.method.init_state(), state)
        arrays: dict[str, Any] = {item.field: item.zeros() for item in self._artifact.state}
        arrays |= arrays_of(state)
        arrays["frames"] = np.array(frames, dtype=np.int64)
        self._replace(arrays, frames=frames)

    def close(self) -> None:
        """Release network and state; may be called twice."""
        self._bound = None

    def _run(self, inputs: tuple[Floats, ...], *, update: bool) -> Prediction:
        """One call of the graph; the state advances if it succeeds, is finite and `update`."""
        bound = self._open()
        batch_size = _check_inputs(inputs, self._artifact, fixed_batch=self._fixed_batch)
        if batch_size == 0:
            return self._empty()
        if update:
            # Learned from, or waiting in the graph, or passed by where `update_every` was raised.
            self._passed += batch_size
            update = self._passed * self._artifact.update_every >= self._update_every
        try:
            values = bound.run(inputs, update=update)
        except RUN_ERRORS as err:
            raise EngineError(
                f"{self._artifact.path}: {self._provider} failed on a batch of {batch_size}: "
                f"{one_line(err)}"
            ) from err
        if not values["finite"]:
            raise NumericsError(
                f"{self._artifact.path}: {', '.join(self._artifact.input_names)}: expected finite "
                "values here and behind the network, got NaN or infinity; the batch was rejected "
                "and the state is untouched"
            )
        if update:
            bound.advance()
            self._count(batch_size)
        return Prediction(**values)

    def _count(self, batch_size: int) -> None:
        """Count a batch as the graph has: it waits, or everything that waits was learned from."""
        self._passed = 0
        self._pending_frames += batch_size
        least = self._artifact.update_every
        awaited = least if self._frames else max(least, self.warmup_frames)
        if self._pending_frames >= awaited:
            self._frames += self._pending_frames
            self._pending_frames = 0

    def _replace(self, arrays: dict[str, Any], *, frames: int) -> None:
        """Put a state in the place of the present one; nothing waits then."""
        self._open().replace(arrays)
        self._frames, self._pending_frames = frames, 0
        self._passed = 0

    def _read(self, fields: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
        """State tensors, copied to the host."""
        bound = self._open()
        return {field: bound.read(field) for field in fields}

    def _empty(self) -> Prediction:
        """The prediction of no frame."""
        wide = np.empty((0, self._artifact.manifest.num_classes), dtype=np.float32)
        flat = np.empty(0, dtype=np.float32)
        return Prediction(
            probs=wide,
            log_probs=wide,
            strength=flat,
            gain=flat,
            source_log_probs=wide,
            finite=np.array(True),
        )

    def _open(self) -> AdaptiveBinding:
        """The graph and its state, unless they are released."""
        if self._bound is None:
            raise EngineError(
                f"{self._artifact.path}: the session is closed; open it again before use"
            )
        return self._bound
