"""A prediction's memory: where what lies, and the part of it that the host is given."""

from __future__ import annotations

import numpy as np
import pytest
from lazy_streams import LazyDevice, lazy_cupy
from numpy.testing import assert_array_equal

from gain_core import Prediction
from gain_runtime.cuda.prediction_block import (
    PredictionBlock,
    host_part,
    layout_of,
    new_block,
    read_host_part,
)

DTYPES = [pytest.param(np.dtype(name), id=name) for name in ("float32", "float64")]


def filled(batch_size, num_classes, dtype):
    """A block on the device, and the same in NumPy arrays."""
    cupy = lazy_cupy(LazyDevice(0))
    made = new_block(batch_size, like=cupy.empty((num_classes,), dtype))
    bytes_there = made.block.values
    arrays = PredictionBlock.over(bytes_there, made.layout)
    rng = np.random.default_rng(0)
    for name in ("probs", "log_probs", "source_log_probs", "strength", "gain"):
        array = getattr(arrays.prediction, name)
        array[...] = -rng.random(array.shape)
    arrays.prediction.finite[...] = True
    arrays.row_finite[...] = False
    arrays.trips[...] = 3.0
    return made, arrays


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch_size", "num_classes"), [(1, 2), (3, 7), (64, 1001)])
def test_arrays_fill_the_block_and_are_aligned(batch_size, num_classes, dtype):
    layout = layout_of(batch_size, num_classes, dtype)
    end = 0
    for offset, shape, kind in layout.arrays:
        assert offset == end
        assert offset % kind.itemsize == 0
        end += int(np.prod(shape)) * kind.itemsize
    assert layout.nbytes == end


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch_size", "num_classes"), [(1, 2), (3, 7)])
def test_host_is_given_everything_but_what_follows_from_it(batch_size, num_classes, dtype):
    made, arrays = filled(batch_size, num_classes, dtype)
    part, layout = host_part(made.prediction)
    reals = 2 * batch_size * num_classes + 2 * batch_size + 1
    assert part.nbytes == layout.host_nbytes == reals * dtype.itemsize + batch_size + 1
    prediction, trips = read_host_part(part.values.copy(), layout)
    assert_array_equal(prediction.probs, np.exp(prediction.log_probs))
    assert int(trips) == 3
    for name in Prediction.__dataclass_fields__:
        if name != "probs":
            wanted = getattr(arrays.prediction, name)
            array = getattr(prediction, name)
            assert_array_equal(array, wanted, err_msg=name)
            assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)


def test_rejected_batch_may_hold_anything():
    made, arrays = filled(2, 3, np.dtype(np.float32))
    arrays.prediction.log_probs[...] = [[np.nan, np.inf, 3e38], [-np.inf, 1e30, 0.0]]
    part, layout = host_part(made.prediction)
    prediction, _ = read_host_part(part.values.copy(), layout)
    assert prediction.probs[1, 2] == 1.0
