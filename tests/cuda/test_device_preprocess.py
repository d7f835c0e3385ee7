"""The preprocessing kernels, run as host C++, equal the CPU's path to the last bit."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from gain_core.errors import ArrayError
from gain_runtime.cuda.cuda_preprocess import CudaPreprocessor
from gain_runtime.cuda.preprocess_module import KERNELS, preprocess_source
from gain_runtime.cuda.resample_weights import vertical_first
from gain_runtime.manifest import Preprocess
from gain_runtime.preprocess import ResizedCrop, preprocess_batch

SHIM = Path(__file__).with_name("preprocess_shim.cpp")
PHOTOS = Path(__file__).parents[3] / "shared" / "data" / "imagenet_samples"
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
FILTERS = ["nearest", "bilinear", "bicubic", "lanczos"]
GARBAGE = 0xA5


class HostUploads:
    """`Uploads` on the host; memory is spoilt before it is written and after it may be read."""

    def __init__(self) -> None:
        self.kept: list[np.ndarray] = []
        self.reserved: np.ndarray | None = None
        self.num_uploaded = 0
        self.calls: list[str] = []

    def begin(self) -> None:
        assert self.reserved is None
        self.calls.append("begin")

    def keep(self, array: np.ndarray, /) -> np.ndarray:
        self.kept.append(array.copy())
        return self.kept[-1]

    def reserve(self, num_bytes: int, /) -> np.ndarray:
        assert self.reserved is None
        self.reserved = np.full(num_bytes, GARBAGE, dtype=np.uint8)
        return self.reserved

    def upload(self, reserved: np.ndarray, offset: int, source: np.ndarray, /) -> None:
        assert reserved is self.reserved
        assert offset % 8 == 0
        assert self.calls[-1] == "begin"
        reserved[offset : offset + source.nbytes] = np.frombuffer(source.tobytes(), np.uint8)
        self.num_uploaded += source.nbytes

    def publish(self) -> None:
        self.calls.append("publish")

    def finish(self) -> None:
        assert self.reserved is not None
        self.reserved[:] = GARBAGE
        self.reserved = None
        self.calls.append("finish")


class HostKernels:
    """`PreprocessKernels` on the host."""

    array_type = np.ndarray

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.uploads = HostUploads()
        self.launched: list[tuple[int, int]] = []

    def address(self, array: np.ndarray, /) -> int:
        assert array.flags.c_contiguous
        return array.ctypes.data

    def empty(self, shape: tuple[int, ...], dtype: Any, /) -> np.ndarray:
        array = np.empty(shape, dtype=dtype)
        array.view(np.uint8)[...] = GARBAGE
        return array

    def launch(self, name: str, arguments: Sequence[Any], /, *, blocks: int, threads: int) -> None:
        assert self.uploads.calls[-1] == "publish"
        holders = [
            ctypes.c_void_p(self.address(argument))
            if isinstance(argument, np.ndarray)
            else ctypes.c_int(argument)
            for argument in arguments
        ]
        packed = (ctypes.c_void_p * len(holders))(*(ctypes.addressof(item) for item in holders))
        getattr(self._library, f"host_{name}")(blocks, threads, packed)
        self.launched.append((blocks, threads))


class OnDevice:
    """An array as another library on the device shows it."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = dict(self._array.__array_interface__)
        if self._array.flags.c_contiguous:
            interface["strides"] = None
        return interface


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels as a shared library."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed")
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "preprocess_kernels.cuh").write_text(preprocess_source(), encoding="utf-8")
    target = folder / "preprocess.so"
    command = [compiler, "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += [f"-I{folder}", "-o", str(target), str(SHIM)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return ctypes.CDLL(str(target))


@pytest.fixture
def device(library: ctypes.CDLL) -> Callable[[Preprocess], CudaPreprocessor]:
    return lambda settings: CudaPreprocessor(settings, kernels=HostKernels(library))


def spec(**changes: Any) -> Preprocess:
    return replace(Preprocess(height_px=32, width_px=32, **IMAGENET), **changes)


def noise(height: int, width: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def scene(height: int, width: int, *, seed: int = 0) -> np.ndarray:
    """Slopes, edges and a little noise, as photographs have them; the brightest overshoots."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = 110 + 80 * np.sin(9 * x + 4 * y)[..., None] * rng.uniform(0.2, 1.0, 3)
    edges = 120 * ((7 * x).astype(int) % 2 ^ (5 * y).astype(int) % 2)[..., None]
    grain = rng.normal(0, 6, (height, width, 3))
    return np.clip(waves + edges + grain, 0, 255).astype(np.uint8)


def assert_equal(
    result: np.ndarray, images: Sequence[np.ndarray], settings: Preprocess, **regions: Any
) -> None:
    expected = preprocess_batch(images, settings, **regions)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("make", [noise, scene])
@pytest.mark.parametrize("crop_mode", ["center", "squash"])
@pytest.mark.parametrize("interpolation", FILTERS)
def test_every_filter_and_crop(device, interpolation, crop_mode, make):
    images = [
        make(97, 143, seed=1),
        make(180, 61, seed=2),
        make(20, 27, seed=3),
        make(32, 32, seed=4),
        make(32, 90, seed=5),
        make(36, 36, seed=6),
    ]
    for crop_fraction in (1.0, 0.9):
        for width_px in (32, 41):
            settings = spec(
                interpolation=interpolation,
                crop_mode=crop_mode,
                crop_fraction=crop_fraction,
                width_px=width_px,
            )
            assert_equal(device(settings)(images), images, settings)


@pytest.mark.parametrize("interpolation", FILTERS)
def test_the_bytes_before_normalising_are_pillows(device, interpolation):
    # With mean 0 and deviation 1 every level has a float of its own.
    settings = spec(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), interpolation=interpolation)
    image = np.where(noise(120, 99) > 127, 255, 0).astype(np.uint8)
    levels = device(replace(settings, crop_mode="squash"))([image])[0] * np.float32(255.0)
    resample = Image.Resampling[interpolation.upper()]
    expected = np.asarray(Image.fromarray(image).resize((32, 32), resample))
    np.testing.assert_array_equal(np.rint(levels).transpose(1, 2, 0), expected)


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 2), (2, 1), (1, 33), (3, 700), (700, 3), (90, 40), (250, 1), (64, 5)]
)
def test_single_pixels_and_extreme_ratios(device, shape, interpolation):
    for crop_mode in ("center", "squash"):
        settings = spec(height_px=9, width_px=14, interpolation=interpolation, crop_mode=crop_mode)
        images = [noise(*shape), scene(*shape)]
        assert_equal(device(settings)(images), images, settings)
    assert_equal(device(spec())(images), images, spec())


@pytest.mark.skipif(not PHOTOS.is_dir(), reason="the sample photographs are not here")
def test_photographs(device):
    photos = []
    for path in sorted(PHOTOS.glob("*.jpg"))[:12]:
        with Image.open(path) as photo:
            photos.append(np.asarray(photo.convert("RGB")))
    assert any(photo.shape[0] != photo.shape[1] for photo in photos)
    for changes in ({"crop_fraction": 0.9}, {"interpolation": "bilinear", "crop_mode": "squash"}):
        settings = spec(height_px=224, width_px=224, **changes)
        assert_equal(device(settings)(photos), photos, settings)


def test_regions_of_one_frame(device):
    image, settings = scene(90, 120), spec(crop_fraction=0.95)
    regions = [None, (4, 4, 60, 61), (-5, 0, 30, 999), (50, 3, 58, 90), (7, 80, 120, 84)]
    run = device(settings)
    result = run([image] * len(regions), regions=regions)
    assert_equal(result, [image] * len(regions), settings, regions=regions)
    moved = OnDevice(image)
    np.testing.assert_array_equal(run([moved] * len(regions), regions=regions), result)


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda image: image, id="contiguous"),
        pytest.param(lambda image: image[:, ::-1], id="mirrored"),
        pytest.param(lambda image: image[::-1], id="upside down"),
        pytest.param(lambda image: image[..., ::-1], id="channels reversed"),
        pytest.param(lambda image: np.asfortranarray(image), id="fortran order"),
        pytest.param(lambda image: image[::2, 1::3], id="strided"),
    ],
)
@pytest.mark.parametrize("channel_order", ["RGB", "BGR"])
def test_memory_layout_and_plane_order(device, view, channel_order):
    settings = spec(channel_order=channel_order)
    image = view(scene(95, 130))
    image.flags.writeable = False
    for given_ in (image, OnDevice(image)):
        assert_equal(device(settings)([given_]), [image], settings)


def test_only_what_the_crop_needs_is_copied(device):
    run = device(spec(crop_fraction=0.5))
    run([noise(640, 640)])
    uploaded = run._kernels.uploads.num_uploaded
    # Half of each side and the filter's reach, of 640 x 640 x 3 bytes.
    assert 320 * 320 * 3 < uploaded < 380 * 380 * 3
    before = run._kernels.uploads.num_uploaded
    run([OnDevice(noise(640, 640))])
    assert run._kernels.uploads.num_uploaded - before < 100


def test_weights_are_made_once(device):
    run = device(spec())
    images = [noise(50, 70), noise(50, 70, seed=1), noise(70, 50)]
    run(images)
    made = len(run._kernels.uploads.kept)
    assert made == 1 + 2  # the levels, and the weights of 50 and of 70 px in either direction
    run(images)
    assert len(run._kernels.uploads.kept) == made


def test_cache_stays_small_and_right(device):
    run = device(spec())
    run._weights._max_bytes = 20_000
    for height in [*range(40, 140, 7), 40, 47]:
        images = [noise(height, height + 9), noise(height + 3, 77)]
        assert_equal(run(images), images, spec())
        entries = run._weights._entries.values()
        assert sum(entry.table.nbytes for entry in entries) == run._weights._num_bytes <= 20_000


def test_blocks_take_several_lines_of_tall_frames(device, monkeypatch):
    monkeypatch.setattr("gain_runtime.cuda.cuda_preprocess._MAX_BLOCKS_PER_FRAME", 7)
    settings = spec(width_px=300, crop_mode="squash")
    images = [noise(100, 400), noise(9, 700), noise(200, 3)]
    run = device(settings)
    assert_equal(run(images), images, settings)
    blocks, threads = run._kernels.launched[0]
    assert blocks == 7 * 3
    assert threads == 160  # 300 places in two turns, in whole warps


def test_result_goes_where_it_is_asked_for(device):
    images = [noise(40, 50), noise(60, 50)]
    out = np.full((2, 3, 32, 32), np.nan, dtype=np.float32)
    assert device(spec())(images, out=out) is out
    assert_equal(out, images, spec())


@pytest.mark.parametrize(
    ("out", "words"),
    [
        pytest.param(np.zeros((1, 3, 32, 32), np.float32), r"got \(1, 3", id="batch"),
        pytest.param(np.zeros((2, 3, 32, 32), np.float64), "got .* float64;", id="dtype"),
        pytest.param(
            np.zeros((2, 32, 32, 3), np.float32).transpose(0, 3, 1, 2), "not C-con", id="layout"
        ),
        pytest.param([], "got list", id="list"),
    ],
)
def test_other_memory_for_the_result_is_refused(device, out, words):
    with pytest.raises(ArrayError, match=rf"^out: expected .*{words}"):
        device(spec())([noise(40, 50)] * 2, out=out)


def test_empty_batch_runs_nothing(device):
    run = device(spec())
    assert run([]).shape == (0, 3, 32, 32)
    assert run._kernels.launched == []


BAD = [
    pytest.param(noise(8, 8).astype(np.float32), None, id="float32"),
    pytest.param(noise(8, 8)[..., 0], None, id="grey"),
    pytest.param(np.zeros((8, 8, 4), dtype=np.uint8), None, id="alpha"),
    pytest.param(np.zeros((0, 8, 3), dtype=np.uint8), None, id="no rows"),
    pytest.param([[[0, 0, 0]]], None, id="list"),
    pytest.param(noise(1, 400_000), None, id="sliver"),
    pytest.param(noise(8, 8), (3, 3, 3, 9), id="no width"),
    pytest.param(noise(8, 8), (8, 0, 12, 9), id="outside"),
    pytest.param(noise(8, 8), (0.5, 0, 4, 4), id="fractions"),
    pytest.param(noise(8, 8), (0, 0, 4), id="three edges"),
]


@pytest.mark.parametrize(("image", "region"), BAD)
def test_bad_input_is_refused_as_on_the_cpu(device, image, region):
    settings = spec(height_px=224, width_px=224)
    images, regions = [noise(8, 8), image], [None, region]
    with pytest.raises(ArrayError) as expected:
        preprocess_batch(images, settings, regions=regions)
    run = device(settings)
    sources = [image, OnDevice(image)] if isinstance(image, np.ndarray) else [image]
    for source in sources:
        with pytest.raises(ArrayError) as raised:
            run([images[0], source], regions=regions)
        assert str(raised.value) == str(expected.value)
    assert run._kernels.uploads.calls == []
    assert run._kernels.launched == []


def test_too_few_regions_are_refused_as_on_the_cpu(device):
    with pytest.raises(ArrayError, match="regions: expected 2"):
        device(spec())([noise(9, 9)] * 2, regions=[None])


side = st.one_of(st.integers(1, 12), st.integers(1, 300))


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[tuple[int, int]], Preprocess]:
    """Shapes of frames, and settings under which none of them becomes huge."""
    settings = spec(
        height_px=draw(st.integers(1, 40)),
        width_px=draw(st.integers(1, 40)),
        interpolation=draw(st.sampled_from(FILTERS)),
        crop_mode=draw(st.sampled_from(["center", "squash"])),
        crop_fraction=draw(st.sampled_from([1.0, 0.95, 0.9, 0.875, 0.5, 0.31])),
        channel_order=draw(st.sampled_from(["RGB", "BGR"])),
    )
    return draw(st.lists(st.tuples(side, side), min_size=1, max_size=4)), settings


@settings(max_examples=150, deadline=None, derandomize=True)
@given(batch=batches(), seed=st.integers(0, 9), two_levels=st.booleans())
@example(batch=([(45, 5)], spec(height_px=1, width_px=1)), seed=0, two_levels=True)
def test_any_batch_equals_the_cpu(library, batch, seed, two_levels):
    shapes, chosen = batch
    images = [noise(*shape, seed=seed) for shape in shapes]
    if two_levels:  # The steepest edges there are: sums leave the range of levels.
        images = [np.where(image > 127, 255, 0).astype(np.uint8) for image in images]
    run = CudaPreprocessor(chosen, kernels=HostKernels(library))
    assert_equal(run(images), images, chosen)


@pytest.mark.parametrize(
    ("pillow", "frame", "resized", "expected"),
    [
        pytest.param((12, 1), (5000, 3), (100, 3), False, id="12.1"),
        pytest.param((12, 2), (5000, 3), (100, 3), True, id="12.2 sliver"),
        pytest.param((12, 3), (300, 3), (100, 3), False, id="12.3 exactly 100"),
        pytest.param((12, 3), (5000, 3), (5000, 2), False, id="12.3 as tall"),
        pytest.param((13, 0), (90, 40), (30, 10), False, id="13 exactly twice"),
        pytest.param((13, 0), (91, 40), (30, 10), True, id="13 more than twice"),
        pytest.param((13, 0), (31, 40), (30, 80), True, id="13 wider"),
        pytest.param((13, 0), (30, 40), (30, 20), False, id="13 as tall"),
        pytest.param((13, 0), (30, 10), (90, 5), False, id="13 taller"),
    ],
)
def test_order_of_the_axes_by_version(pillow, frame, resized, expected):
    crop = ResizedCrop(height_px=resized[0], width_px=resized[1], top_px=0, left_px=0)
    assert vertical_first(*frame, crop, pillow=pillow) is expected


@pytest.mark.parametrize("architecture", ["sm_80", "sm_87", "sm_90"])
def test_source_compiles_to_ptx(tmp_path, architecture):
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("nvcc is not installed")
    source, target = tmp_path / "preprocess.cu", tmp_path / "preprocess.ptx"
    source.write_text(preprocess_source(), encoding="utf-8")
    command = [compiler, "-ptx", f"-arch={architecture}", "-std=c++17", "-Werror", "all-warnings"]
    command += ["-o", str(target), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    lines = target.read_text(encoding="utf-8").splitlines()
    assert {line.split()[2].rstrip("(") for line in lines if ".entry" in line} == set(KERNELS)
    assert not [line for line in lines if "fma" in line or ".f64" in line]


def test_missing_cupy_is_named() -> None:
    code = (
        "import sys; sys.modules['cupy'] = None\n"
        "from gain_core import BackendUnavailableError\n"
        "from gain_runtime.cuda.cuda_preprocess import CudaPreprocessor\n"
        "from gain_runtime.manifest import Preprocess\n"
        "spec = Preprocess(height_px=4, width_px=4, mean=(0, 0, 0), std=(1, 1, 1))\n"
        "try:\n"
        "    CudaPreprocessor(spec)\n"
        "except BackendUnavailableError as err:\n"
        "    print(err)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert "gain-edge[cuda12]" in result.stdout
