"""An adaptive graph's state, kept where the graph runs: two sets of buffers that change places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnxruntime

from gain_runtime.adaptive_artifact import AdaptiveArtifact
from gain_runtime.onnx_native import CUDA_PROVIDER

__all__ = ["PREDICTED", "AdaptiveBinding"]

# What a call copies to the host; everything else stays where it is.
PREDICTED = ("probs", "log_probs", "strength", "gain", "source_log_probs", "finite")

Floats = npt.NDArray[np.float32]
_Buffers: TypeAlias = "dict[str, onnxruntime.OrtValue]"


class AdaptiveBinding:
    """A loaded adaptive graph with its state.

    A call reads one set of the state's buffers and writes the other; `advance` lets them change
    places, so that a call that is not followed by it has changed nothing. ONNX Runtime owns the
    buffers, which therefore need no CuPy.

    Parameters
    ----------
    native : onnxruntime.InferenceSession
    artifact : AdaptiveArtifact
        The file it was loaded from.
    provider : str
        The execution provider it runs on, which says where the buffers lie.
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
        """Call the graph once and wait for it.

        Parameters
        ----------
        inputs : sequence of arrays, (B, ...) float32
            One for each of the artifact's inputs, checked, with B at least 1.
        update : bool
            Whether the other set of buffers receives a new state; otherwise the state is not
            written, whatever it is.

        Returns
        -------
        dict
            The outputs named in `PREDICTED`: NumPy arrays of their own memory.
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
        """Copy one tensor of the state to the host.

        Parameters
        ----------
        field : str
            As `StateSpec.field` names it.

        Returns
        -------
        array
            Of its own memory.
        """
        return np.array(self._sets[self._current][field].numpy())

    def replace(self, arrays: Mapping[str, npt.NDArray[Any]], /) -> None:
        """Put a state in the place of the present one.

        Parameters
        ----------
        arrays : mapping of str to array
            Every tensor of the state by field, on the host; copied.
        """
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
