"""TensorRT for RTX builds the step of a thousand classes in seconds, on a machine without a GPU."""

import time

import numpy as np
import pytest

from gain_core import PRESETS

pytestmark = pytest.mark.slow

# Four are used; a builder that follows every way through a graph would need hours.
MOST_CPU_SECONDS = 60.0


@pytest.mark.parametrize("preset", ["shift", "paper-l2"])
def test_the_step_of_a_thousand_classes_is_built(make_graph, preset):
    trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    weight = np.random.default_rng(0).normal(size=(1000, 64)).astype(np.float32)
    path = make_graph(weight, PRESETS[preset]).path
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, trt.Logger(trt.Logger.ERROR))
    assert parser.parse(path.read_bytes()), parser.get_error(0).desc()
    profile, config = builder.create_optimization_profile(), builder.create_builder_config()
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    for tensor in inputs:
        if -1 in (shape := tuple(tensor.shape)):
            sizes = [tuple(n if size == -1 else size for size in shape) for n in (1, 16, 64)]
            profile.set_shape(tensor.name, *sizes)
    config.add_optimization_profile(profile)
    began = time.process_time()
    plan = builder.build_serialized_network(network, config)
    assert plan is not None
    assert time.process_time() - began < MOST_CPU_SECONDS
