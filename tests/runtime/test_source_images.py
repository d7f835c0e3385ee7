"""Photos: modes, orientation, order, damage and truth."""

from __future__ import annotations

import io
import logging
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from gain_core.errors import ArtifactError, StreamError
from gain_runtime.class_list import class_list_from_names, read_class_list
from gain_runtime.image_file import load_image
from gain_runtime.sources import open_source

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "data" / "imagenet_samples"
RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def photo(
    path: Path, *, colour: tuple[int, int, int] = RED, size: tuple[int, int] = (8, 6)
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def write_classes(folder: Path, rows: list[tuple[int, str, str]]) -> Path:
    path = folder / "classes.tsv"
    lines = ["index\twnid\tname", *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def png_chunk(name: bytes, content: bytes) -> bytes:
    body = name + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


def write_rgb16_png(path: Path, values: np.ndarray) -> None:
    """16 bits per channel, which Pillow reads and does not write."""
    height, width, _ = values.shape
    rows = b"".join(b"\x00" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + png_chunk(b"IDAT", zlib.compress(rows))
        + png_chunk(b"IEND", b"")
    )


def corners(image: np.ndarray) -> list[list[int]]:
    return [image[row, column].tolist() for row, column in ((0, 0), (0, -1), (-1, -1), (-1, 0))]


@pytest.mark.parametrize(
    ("orientation", "order"),
    [
        pytest.param(1, (0, 1, 2, 3), id="1-upright"),
        pytest.param(2, (1, 0, 3, 2), id="2-mirrored"),
        pytest.param(3, (2, 3, 0, 1), id="3-upside-down"),
        pytest.param(6, (3, 0, 1, 2), id="6-phone-portrait"),
        pytest.param(8, (1, 2, 3, 0), id="8-other-portrait"),
    ],
)
def test_exif_orientation_is_applied(
    tmp_path: Path, orientation: int, order: tuple[int, ...]
) -> None:
    colours = [RED, GREEN, BLUE, (255, 255, 255)]
    stored = np.zeros((16, 32, 3), dtype=np.uint8)
    stored[:8, :16], stored[:8, 16:], stored[8:, 16:], stored[8:, :16] = colours
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "phone.jpg"
    Image.fromarray(stored).save(path, exif=exif, quality=100, subsampling=0)
    image = load_image(path)
    assert image.shape == ((32, 16, 3) if orientation in (6, 8) else (16, 32, 3))
    np.testing.assert_allclose(corners(image), [colours[at] for at in order], atol=4)


def test_palette_transparency_lies_over_white(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.putpixel((0, 0), 1)
    image.save(tmp_path / "p.png", transparency=0)
    pixels = load_image(tmp_path / "p.png")
    assert pixels[0, 0].tolist() == [255, 0, 0]
    assert pixels[3, 3].tolist() == [255, 255, 255]


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        pytest.param("RGBA", (255, 0, 0, 51), (255, 204, 204), id="rgba"),
        pytest.param("LA", (0, 0), (255, 255, 255), id="la-clear"),
        pytest.param("LA", (100, 255), (100, 100, 100), id="la-opaque"),
        pytest.param("L", 77, (77, 77, 77), id="grey"),
        pytest.param("1", 1, (255, 255, 255), id="bilevel"),
    ],
)
def test_png_modes_become_rgb(tmp_path: Path, mode: str, value: object, expected: tuple) -> None:
    Image.new(mode, (4, 3), value).save(tmp_path / "a.png")
    pixels = load_image(tmp_path / "a.png")
    assert pixels.shape == (3, 4, 3)
    np.testing.assert_allclose(pixels[1, 1], expected, atol=1)


def test_cmyk_jpeg_keeps_its_colours(tmp_path: Path) -> None:
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "print.jpg", quality=100)
    np.testing.assert_allclose(load_image(tmp_path / "print.jpg")[8, 8], RED, atol=8)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path: Path, suffix: str) -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / f"deep{suffix}")
    pixels = load_image(tmp_path / f"deep{suffix}")
    expected = np.repeat((ramp / 257.0)[:, :, None], 3, axis=2)
    np.testing.assert_allclose(pixels, expected, atol=0.51)


def test_sixteen_bit_colour_is_scaled(tmp_path: Path) -> None:
    values = np.zeros((2, 3, 3), dtype=np.uint16)
    values[:, :, 0] = 65535
    values[:, :, 1] = 257 * 100
    write_rgb16_png(tmp_path / "deep.png", values)
    np.testing.assert_allclose(load_image(tmp_path / "deep.png")[0, 0], (255, 100, 0), atol=1)


def test_floating_point_pixels_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.ones((4, 4), dtype=np.float32)).save(tmp_path / "f.tif")
    with pytest.raises(StreamError, match="floating-point"):
        load_image(tmp_path / "f.tif")


def test_an_animation_gives_its_first_frame(tmp_path: Path) -> None:
    first, second = (Image.new("RGB", (8, 8), colour) for colour in (RED, BLUE))
    first.save(tmp_path / "a.gif", save_all=True, append_images=[second])
    assert load_image(tmp_path / "a.gif")[4, 4].tolist() == list(RED)


def encode(kind: str) -> bytes:
    rng = np.random.default_rng(0)
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (24, 32, 3), dtype=np.uint8)).save(buffer, kind)
    return buffer.getvalue()


ENCODED = {
    ".jpg": encode("JPEG"),
    ".png": encode("PNG"),
    ".bmp": encode("BMP"),
    ".webp": encode("WEBP"),
}


@pytest.mark.skipif(
    ".avif" not in Image.registered_extensions(), reason="this Pillow reads no AVIF"
)
def test_a_damaged_avif_is_a_stream_error(tmp_path: Path) -> None:
    """Pillow raises RuntimeError here, and OSError for every other format."""
    path = tmp_path / "damaged.avif"
    head, name, pixels = encode("AVIF").partition(b"mdat")
    path.write_bytes(head + name + bytes(len(pixels)))
    with pytest.raises(StreamError, match=r"damaged\.avif.*Failed to decode"):
        load_image(path)


@pytest.mark.filterwarnings("ignore")
@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    suffix=st.sampled_from(sorted(ENCODED)),
    keep=st.floats(0.0, 1.0),
    damage=st.lists(st.tuples(st.floats(0.0, 0.999), st.integers(0, 255)), max_size=6),
)
def test_damaged_bytes_give_pixels_or_a_stream_error(
    tmp_path: Path, suffix: str, keep: float, damage: list[tuple[float, int]]
) -> None:
    data = bytearray(ENCODED[suffix])
    for at, value in damage:
        data[int(at * len(data))] = value
    path = tmp_path / f"damaged{suffix}"
    path.write_bytes(data[: int(keep * len(data))])
    message = path.name
    try:
        image = load_image(path)
    except StreamError as err:
        image, message = np.zeros((1, 1, 3), dtype=np.uint8), str(err)
    assert image.ndim == 3
    assert image.dtype == np.uint8
    assert path.name in message
    assert "\n" not in message


def test_a_folder_comes_in_natural_order_without_what_is_no_image(tmp_path: Path) -> None:
    for name in ("10.jpg", "9.JPG", "1.png", ".hidden.jpg", "b2.bmp", "B10.jpg"):
        photo(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "folder.jpg").mkdir()
    with open_source(str(tmp_path)) as source:
        frames = list(source)
        assert source.info.num_frames == 5
        assert source.skipped == 0
        assert not source.info.live
    assert [frame.source_id for frame in frames] == [
        "1.png",
        "9.JPG",
        "10.jpg",
        "b2.bmp",
        "B10.jpg",
    ]
    assert [frame.index for frame in frames] == [0, 1, 2, 3, 4]
    stamps = [frame.timestamp_ns for frame in frames]
    assert stamps == sorted(set(stamps))
    assert all(frame.truth is None for frame in frames)


def test_sizes_may_differ(tmp_path: Path) -> None:
    photo(tmp_path / "a.png", size=(8, 6))
    photo(tmp_path / "b.png", size=(5, 9))
    with open_source(str(tmp_path)) as source:
        assert (source.info.width_px, source.info.height_px) == (8, 6)
        assert [frame.image.shape for frame in source] == [(6, 8, 3), (9, 5, 3)]


def test_unreadable_images_are_skipped_with_one_warning_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(0)
    whole = Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8))
    (tmp_path / "0.jpg").write_bytes(b"no image at all")
    photo(tmp_path / "1.jpg")
    whole.save(tmp_path / "2.jpg")
    data = (tmp_path / "2.jpg").read_bytes()
    (tmp_path / "2.jpg").write_bytes(data[: len(data) // 2])
    (tmp_path / "3.jpg").write_bytes(b"")
    photo(tmp_path / "4.jpg")
    (tmp_path / "5.jpg").symlink_to(tmp_path / "gone.jpg")
    with caplog.at_level(logging.WARNING), open_source(str(tmp_path)) as source:
        frames = list(source)
        assert source.skipped == 4
    assert [(frame.index, frame.source_id) for frame in frames] == [(1, "1.jpg"), (4, "4.jpg")]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 4
    for message, name in zip(messages, ("0.jpg", "2.jpg", "3.jpg", "5.jpg"), strict=True):
        assert name in message


def test_a_folder_with_no_readable_image_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"nothing")
    (tmp_path / "b.jpg").write_bytes(b"nothing")
    with pytest.raises(StreamError, match=r"at least one readable image.*2 unreadable"):
        open_source(str(tmp_path))


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StreamError, match="expected a folder with images"):
        open_source(str(tmp_path))


def test_a_folder_of_folders_says_how_to_go_on(tmp_path: Path) -> None:
    photo(tmp_path / "2024" / "a.jpg")
    with pytest.raises(StreamError, match=r"1 sub-folders.*glob"):
        open_source(str(tmp_path))
    with open_source(f"{tmp_path}/**/*.jpg") as source:
        assert [frame.source_id for frame in source] == ["2024/a.jpg"]


def test_a_glob_takes_the_images_it_matches(tmp_path: Path) -> None:
    for name in ("n10.jpg", "n9.jpg", "m1.jpg"):
        photo(tmp_path / name)
    (tmp_path / "n1.txt").write_text("no image")
    with open_source(f"{tmp_path}/n*") as source:
        assert [frame.source_id for frame in source] == ["n9.jpg", "n10.jpg"]


def test_a_glob_without_images_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"")
    with pytest.raises(StreamError, match="1 matches and no image"):
        open_source(f"{tmp_path}/*.mp4")


def test_a_single_image_is_a_source_of_one_frame(tmp_path: Path) -> None:
    photo(tmp_path / "one.png", colour=GREEN)
    with open_source(str(tmp_path / "one.png")) as source:
        (frame,) = source
    assert frame.source_id == "one.png"
    assert frame.image[0, 0].tolist() == list(GREEN)


@pytest.mark.parametrize("name", ["gone.jpg", "gone"])
def test_a_missing_path_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(StreamError, match=f"{name}: no such file"):
        open_source(str(tmp_path / name))


def test_close_ends_the_iteration(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.png"):
        photo(tmp_path / name)
    source = open_source(str(tmp_path))
    frames = iter(source)
    next(frames)
    source.close()
    source.close()
    assert list(frames) == []


CLASSES = [(0, "n01440764", "tench"), (1, "n01443537", "goldfish"), (2, "n02", "crane")]


def test_truth_comes_from_the_class_list_in_the_folder(tmp_path: Path) -> None:
    write_classes(tmp_path, CLASSES)
    for name in ("n01443537_goldfish.jpg", "n01440764_1.jpg", "n99_unknown.jpg", "n02.jpg"):
        photo(tmp_path / name)
    with open_source(str(tmp_path)) as source:
        truths = {frame.source_id: frame.truth for frame in source}
        assert source.info.class_names == ("tench", "goldfish", "crane")
    assert truths == {
        "n01443537_goldfish.jpg": 1,
        "n01440764_1.jpg": 0,
        "n99_unknown.jpg": None,
        "n02.jpg": 2,
    }


def test_an_explicit_class_list_beats_the_one_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    write_classes(tmp_path / "photos", CLASSES)
    explicit = write_classes(tmp_path, [(7, "n01440764", "tench")])
    photo(tmp_path / "photos" / "n01440764_1.jpg")
    with open_source(str(tmp_path / "photos"), classes=read_class_list(explicit)) as source:
        assert [frame.truth for frame in source] == [7]
        assert source.info.class_names is None


@pytest.mark.parametrize(
    "open_it",
    [
        pytest.param(lambda folder: f"{folder}/*_1.jpg", id="glob"),
        pytest.param(lambda folder: f"{folder}/n01443537_1.jpg", id="single"),
    ],
)
def test_a_class_list_beside_the_photos_is_found(
    tmp_path: Path, open_it: Callable[[Path], str]
) -> None:
    write_classes(tmp_path, CLASSES)
    photo(tmp_path / "n01443537_1.jpg")
    with open_source(open_it(tmp_path)) as source:
        assert [frame.truth for frame in source] == [1]


@pytest.mark.parametrize("by", ["name", "wnid"])
def test_folders_named_after_classes_give_the_truth(tmp_path: Path, by: str) -> None:
    for index, wnid, name in CLASSES:
        folder = name if by == "name" else wnid
        photo(tmp_path / folder / f"{10 - index}.png")
    photo(tmp_path / "unknown" / "x.png")
    (tmp_path / ("tench" if by == "name" else "n01440764") / "._10.png").write_bytes(b"macOS")
    classes = (
        class_list_from_names([name for _, _, name in CLASSES])
        if by == "name"
        else read_class_list(write_classes(tmp_path, CLASSES))
    )
    with open_source(str(tmp_path), classes=classes) as source:
        found = {Path(frame.source_id).parent.name: frame.truth for frame in source}
        assert source.skipped == 0
    expected = {(name if by == "name" else wnid): index for index, wnid, name in CLASSES}
    assert found == expected


def test_a_name_that_two_classes_share_is_no_truth(tmp_path: Path) -> None:
    photo(tmp_path / "crane" / "a.png")
    photo(tmp_path / "tench" / "a.png")
    classes = class_list_from_names(["crane", "tench", "crane"])
    with open_source(str(tmp_path), classes=classes) as source:
        assert [(frame.source_id, frame.truth) for frame in source] == [("tench/a.png", 1)]


def test_a_class_list_that_matches_nothing_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    photo(tmp_path / "IMG_1.jpg")
    with open_source(str(tmp_path), classes=class_list_from_names(["a", "b"])) as source:
        assert [frame.truth for frame in source] == [None]
    assert "truth is unknown" in caplog.text


@pytest.mark.parametrize(
    ("content", "named"),
    [
        pytest.param("index\tname\n0\ttench\n", "wnid missing", id="no-wnid-column"),
        pytest.param("", "missing", id="empty"),
        pytest.param("index\twnid\tname\n", "at least one class", id="no-rows"),
        pytest.param("index\twnid\tname\nx\tn1\ta\n", "line 2", id="index-no-number"),
        pytest.param("index\twnid\tname\n-1\tn1\ta\n", "line 2", id="negative"),
        pytest.param("index\twnid\tname\n0\tn1\n", "line 2", id="short-row"),
        pytest.param(
            "index\twnid\tname\n0\tn1\ta\n0\tn2\tb\n", "line 3.*repeated", id="index-twice"
        ),
        pytest.param(
            "index\twnid\tname\n0\tn1\ta\n1\tn1\tb\n", "line 3.*repeated", id="wnid-twice"
        ),
        pytest.param(b"\xff\xfe\x00", "class list", id="binary"),
    ],
)
def test_malformed_class_lists_are_refused(
    tmp_path: Path, content: str | bytes, named: str
) -> None:
    path = tmp_path / "classes.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    photo(tmp_path / "a.jpg")
    with pytest.raises(ArtifactError, match=named):
        open_source(str(tmp_path))


def test_a_missing_class_list_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"classes\.tsv.*No such file"):
        read_class_list(tmp_path / "classes.tsv")


def test_class_lists_with_a_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "classes.tsv"
    path.write_bytes('\ufeffindex\twnid\tname\r\n0\tn1\t"quoted" café\r\n'.encode())
    classes = read_class_list(path)
    assert classes.names == {0: '"quoted" café'}
    assert classes.index_of("n1") == 0


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the ImageNet sample photographs are not here")
def test_the_sample_photographs_all_have_a_truth() -> None:
    with open_source(str(SAMPLES)) as source:
        frames = [frame for frame, _ in zip(source, range(40), strict=False)]
        assert source.info.num_frames == 1000
        assert source.info.class_names is not None
        names = source.info.class_names
    assert len(names) == 1000
    assert [frame.truth for frame in frames] == list(range(40))
    assert names[0] == "tench"
    assert len({frame.image.shape for frame in frames}) > 1
