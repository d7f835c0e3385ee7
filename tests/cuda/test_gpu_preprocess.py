"""Preprocessing on a card: equal to the CPU's, on any stream, without waiting."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gain_runtime.cuda.cuda_preprocess import CudaPreprocessor
from gain_runtime.manifest import Preprocess
from gain_runtime.preprocess import preprocess_batch

pytestmark = pytest.mark.gpu

PHOTOS = Path(__file__).resolve().parents[3] / "shared" / "data" / "imagenet_samples"
SPEC = Preprocess(
    height_px=224, width_px=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
)
SHAPES = [(375, 500), (500, 333), (1080, 1920), (224, 224), (100, 90), (900, 300), (301, 1000)]


def frame(height: int, width: int, *, seed: int = 0) -> np.ndarray:
    """Broad shades under noise that reaches both ends of the range."""
    rng = np.random.default_rng(seed)
    shades = np.linspace(0, 255, height * width).reshape(height, width, 1)
    return np.clip(shades + rng.normal(0, 60, (height, width, 3)), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("crop_mode", ["center", "squash"])
def test_equals_the_cpu(cupy, interpolation, crop_mode):
    images = [frame(*shape, seed=seed) for seed, shape in enumerate(SHAPES)]
    for changes in ({}, {"crop_fraction": 0.9}, {"width_px": 300}, {"channel_order": "BGR"}):
        spec = replace(SPEC, interpolation=interpolation, crop_mode=crop_mode, **changes)
        expected = preprocess_batch(images, spec)
        run = CudaPreprocessor(spec)
        for sources in (images, [cupy.asarray(image) for image in images]):
            np.testing.assert_array_equal(cupy.asnumpy(run(sources)), expected)


@pytest.mark.skipif(not PHOTOS.is_dir(), reason="no photographs at ../shared/data/imagenet_samples")
def test_photographs_equal_the_cpu(cupy):
    photos = []
    for path in sorted(PHOTOS.glob("*.jpg"))[:64]:
        with Image.open(path) as photo:
            photos.append(np.asarray(photo.convert("RGB")))
    spec = replace(SPEC, crop_fraction=0.9)
    result = cupy.asnumpy(CudaPreprocessor(spec)(photos))
    np.testing.assert_array_equal(result, preprocess_batch(photos, spec))


def test_regions_and_views_on_the_device(cupy):
    image = frame(600, 801)
    regions = [None, (10, 20, 400, 300), (-5, 0, 60, 999), (700, 3, 801, 600)]
    moved = cupy.asarray(image)
    run = CudaPreprocessor(SPEC)
    expected = preprocess_batch([image] * 4, SPEC, regions=regions)
    np.testing.assert_array_equal(cupy.asnumpy(run([moved] * 4, regions=regions)), expected)
    views = [(moved[::2, ::-1], image[::2, ::-1]), (moved[..., ::-1], image[..., ::-1])]
    for there, here in views:
        np.testing.assert_array_equal(cupy.asnumpy(run([there])), preprocess_batch([here], SPEC))


def test_torch_tensors_are_read_where_they_lie(cupy):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    image = frame(300, 410)
    tensor = torch.from_numpy(image).cuda()
    torch.cuda.synchronize()
    result = cupy.asnumpy(CudaPreprocessor(SPEC)([tensor]))
    np.testing.assert_array_equal(result, preprocess_batch([image], SPEC))


def test_batches_in_flight_keep_their_own_pixels(cupy):
    """Growing frames, overwritten as soon as a call returns, beside a stream that is busy."""
    run = CudaPreprocessor(SPEC)
    run._weights._max_bytes = 100_000
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    results, expected = [], []
    for index in range(24):
        shape = (260 + 37 * index, 900 - 23 * index)
        images = [frame(*shape, seed=index), frame(*reversed(shape), seed=99 - index)]
        expected.append(preprocess_batch(images, SPEC))
        with streams[index // 6 % 2]:
            _busy(cupy, milliseconds=3)
            out = cupy.full((2, 3, 224, 224), cupy.nan, dtype=np.float32)
            results.append(run(images, out=out))
        for image in images:
            image[:] = 77
    cupy.cuda.Device().synchronize()
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(cupy.asnumpy(result), wanted)


def test_a_call_does_not_wait_for_the_stream(cupy):
    run = CudaPreprocessor(SPEC)
    images = [frame(375, 500)] * 8
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(4):
            run(images)
        stream.synchronize()
        _busy(cupy, milliseconds=400)
        began = time.perf_counter()
        result = run(images)
        spent = time.perf_counter() - began
        assert not stream.done
        stream.synchronize()
    assert spent < 0.2
    np.testing.assert_array_equal(cupy.asnumpy(result), preprocess_batch(images, SPEC))


def _busy(cupy: Any, *, milliseconds: int) -> None:
    """Keep the current stream occupied for about so long."""
    source = """
    extern "C" __global__ void spin(long long nanoseconds) {
        long long begin, now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
        do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        while (now - begin < nanoseconds);
    }
    """
    cupy.RawKernel(source, "spin")((1,), (1,), (np.int64(1_000_000 * milliseconds),))
