"""Photos: modes, orientation, order, damage and truth."""

from __future__ import annotations

import errno
import io
import logging
import os
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, TiffImagePlugin
from without import run_without

from gain_core.errors import ArtifactError, StreamError
from gain_runtime.files import images as image_files
from gain_runtime.files.images import load_image
from gain_runtime.sources.images import class_list_from_names, read_class_list
from gain_runtime.sources.opening import open_source

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


def corners(image: np.ndarray) -> list[list[int]]:
    return [image[row, column].tolist() for row, column in ((0, 0), (0, -1), (-1, -1), (-1, 0))]


@pytest.mark.parametrize(
    ("orientation", "order"),
    [
        (1, (0, 1, 2, 3)),
        (2, (1, 0, 3, 2)),
        (3, (2, 3, 0, 1)),
        # A phone held upright, and the other way up.
        (6, (3, 0, 1, 2)),
        (8, (1, 2, 3, 0)),
    ],
)
def test_exif_orientation_is_applied(tmp_path, orientation, order):
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


def test_palette_transparency_lies_over_white(tmp_path):
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
        ("RGBA", (255, 0, 0, 51), (255, 204, 204)),
        ("LA", (0, 0), (255, 255, 255)),
        ("LA", (100, 255), (100, 100, 100)),
        ("L", 77, (77, 77, 77)),
        ("1", 1, (255, 255, 255)),
        ("CMYK", (0, 255, 255, 0), RED),
    ],
)
def test_modes_become_rgb(tmp_path, mode, value, expected):
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new(mode, (4, 3), value).save(path)
    pixels = load_image(path)
    assert pixels.shape == (3, 4, 3)
    np.testing.assert_allclose(pixels[1, 1], expected, atol=1 if path.suffix == ".png" else 8)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path, suffix):
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / f"deep{suffix}")
    pixels = load_image(tmp_path / f"deep{suffix}")
    expected = np.repeat((ramp / 257.0)[:, :, None], 3, axis=2)
    np.testing.assert_allclose(pixels, expected, atol=0.51)


def test_sixteen_bit_colour_is_scaled(tmp_path):
    values = np.full((2, 3, 3), (0, 257 * 100, 65535), dtype=np.uint16)
    cv2.imwrite(str(tmp_path / "deep.png"), values)
    np.testing.assert_allclose(load_image(tmp_path / "deep.png")[0, 0], (255, 100, 0), atol=1)


def test_floating_point_pixels_are_refused(tmp_path):
    Image.fromarray(np.ones((4, 4), dtype=np.float32)).save(tmp_path / "f.tif")
    with pytest.raises(StreamError, match="floating-point"):
        load_image(tmp_path / "f.tif")


def test_a_folder_comes_in_natural_order_without_what_is_no_image(tmp_path):
    for name in ("10.jpg", "9.JPG", "1.png", ".hidden.jpg", "b2.bmp", "B10.jpg"):
        photo(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "folder.jpg").mkdir()
    with open_source(str(tmp_path)) as source:
        frames = list(source)
        assert source.info.num_frames == 5
        assert source.skipped == 0
        assert not source.info.live
    names = ["1.png", "9.JPG", "10.jpg", "b2.bmp", "B10.jpg"]
    assert [frame.source_id for frame in frames] == names
    assert [frame.index for frame in frames] == [0, 1, 2, 3, 4]
    stamps = [frame.timestamp_ns for frame in frames]
    assert stamps == sorted(set(stamps))
    assert all(frame.truth is None for frame in frames)


def test_sizes_may_differ(tmp_path):
    photo(tmp_path / "a.png", size=(8, 6))
    photo(tmp_path / "b.png", size=(5, 9))
    with open_source(str(tmp_path)) as source:
        assert (source.info.width_px, source.info.height_px) == (8, 6)
        assert [frame.image.shape for frame in source] == [(6, 8, 3), (9, 5, 3)]


def test_unreadable_images_are_skipped_with_one_warning_each(tmp_path, caplog):
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


@pytest.mark.parametrize(
    ("files", "pattern", "words"),
    [
        ([], "", "expected a folder with images"),
        (["a.jpg", "b.jpg"], "", "at least one readable image.*2 unreadable"),
        (["a.mp4"], "/*.mp4", "1 matches and no image"),
    ],
)
def test_where_no_image_is_it_is_an_error(tmp_path, files, pattern, words):
    for name in files:
        (tmp_path / name).write_bytes(b"nothing")
    with pytest.raises(StreamError, match=words):
        open_source(f"{tmp_path}{pattern}")


def test_a_folder_of_folders_says_how_to_go_on(tmp_path):
    photo(tmp_path / "2024" / "a.jpg")
    with pytest.raises(StreamError, match=r"1 sub-folders.*glob"):
        open_source(str(tmp_path))
    with open_source(f"{tmp_path}/**/*.jpg") as source:
        assert [frame.source_id for frame in source] == ["2024/a.jpg"]


@pytest.mark.parametrize("name", ["gone.jpg", "gone"])
def test_a_missing_path_is_an_error(tmp_path, name):
    with pytest.raises(StreamError, match=f"{name}: no such file"):
        open_source(str(tmp_path / name))


def test_close_ends_the_iteration(tmp_path):
    for name in ("a.png", "b.png", "c.png"):
        photo(tmp_path / name)
    source = open_source(str(tmp_path))
    frames = iter(source)
    next(frames)
    source.close()
    source.close()
    assert list(frames) == []


CLASSES = [(0, "n01440764", "tench"), (1, "n01443537", "goldfish"), (2, "n02", "crane")]


def test_truth_comes_from_the_class_list_in_the_folder(tmp_path):
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


def test_an_explicit_class_list_beats_the_one_in_the_folder(tmp_path):
    (tmp_path / "photos").mkdir()
    write_classes(tmp_path / "photos", CLASSES)
    explicit = write_classes(tmp_path, [(7, "n01440764", "tench")])
    photo(tmp_path / "photos" / "n01440764_1.jpg")
    with open_source(str(tmp_path / "photos"), classes=read_class_list(explicit)) as source:
        assert [frame.truth for frame in source] == [7]
        assert source.info.class_names is None


@pytest.mark.parametrize("name", ["*_1.jpg", "n01443537_1.jpg"])
def test_a_class_list_beside_the_photos_is_found(tmp_path, name):
    write_classes(tmp_path, CLASSES)
    photo(tmp_path / "n01443537_1.jpg")
    photo(tmp_path / "n01443537_2.jpg")
    with open_source(f"{tmp_path}/{name}") as source:
        assert [(frame.source_id, frame.truth) for frame in source] == [("n01443537_1.jpg", 1)]


@pytest.mark.parametrize("by", ["name", "wnid"])
def test_folders_named_after_classes_give_the_truth(tmp_path, by):
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


def test_a_name_that_two_classes_share_is_no_truth(tmp_path):
    photo(tmp_path / "crane" / "a.png")
    photo(tmp_path / "tench" / "a.png")
    classes = class_list_from_names(["crane", "tench", "crane"])
    with open_source(str(tmp_path), classes=classes) as source:
        assert [(frame.source_id, frame.truth) for frame in source] == [("tench/a.png", 1)]


def test_a_class_list_that_matches_nothing_is_said(tmp_path, caplog):
    photo(tmp_path / "IMG_1.jpg")
    with open_source(str(tmp_path), classes=class_list_from_names(["a", "b"])) as source:
        assert [frame.truth for frame in source] == [None]
    assert "truth is unknown" in caplog.text


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"index\tname\n0\ttench\n", "wnid missing"),
        (b"", "missing"),
        (b"index\twnid\tname\n", "at least one class"),
        (b"index\twnid\tname\nx\tn1\ta\n", "line 2"),
        (b"index\twnid\tname\n-1\tn1\ta\n", "line 2"),
        (b"index\twnid\tname\n0\tn1\n", "line 2"),
        (b"index\twnid\tname\n0\tn1\ta\n0\tn2\tb\n", "line 3.*repeated"),
        (b"index\twnid\tname\n0\tn1\ta\n1\tn1\tb\n", "line 3.*repeated"),
        (b"\xff\xfe\x00", "class list"),
    ],
)
def test_malformed_class_lists_are_refused(tmp_path, content, named):
    (tmp_path / "classes.tsv").write_bytes(content)
    photo(tmp_path / "a.jpg")
    with pytest.raises(ArtifactError, match=named):
        open_source(str(tmp_path))
    with pytest.raises(ArtifactError, match=r"absent\.tsv.*No such file"):
        read_class_list(tmp_path / "absent.tsv")


def test_class_lists_with_a_byte_order_mark_and_windows_lines_are_read(tmp_path):
    path = tmp_path / "classes.tsv"
    path.write_bytes('\ufeffindex\twnid\tname\r\n0\tn1\t"quoted" café\r\n'.encode())
    classes = read_class_list(path)
    assert classes.names == {0: '"quoted" café'}
    assert classes.index_of("n1") == 0


def turned_exif() -> bytes:
    """Orientation 6 beside Make as a number: Pillow would write the text that it should be."""
    entries = struct.pack(">HHII", 0x010F, 5, 1, 38) + struct.pack(">HHII", 0x0112, 3, 1, 6 << 16)
    head = b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 2)
    return head + entries + struct.pack(">III", 0, 1, 2)


def test_orientation_is_read_from_its_own_tag_alone(tmp_path):
    """Pillow's `exif_transpose` writes all tags again, and raises on those that are broken."""
    image = Image.new("RGB", (40, 20), RED)
    image.paste(BLUE, (0, 0, 20, 20))
    image.save(tmp_path / "a.jpg", exif=turned_exif(), quality=95)
    pixels = load_image(tmp_path / "a.jpg")
    assert pixels.shape == (40, 20, 3)
    np.testing.assert_allclose(pixels[5, 10], BLUE, atol=12)
    np.testing.assert_allclose(pixels[35, 10], RED, atol=12)


def test_exif_that_cannot_be_read_is_none(tmp_path):
    """Of a JPEG, Pillow reads the block itself when it opens the file."""
    Image.new("RGB", (40, 20), RED).save(tmp_path / "a.png", exif=b"Exif\0\0no TIFF header")
    assert load_image(tmp_path / "a.png").shape == (20, 40, 3)


def test_whatever_a_decoder_raises_skips_one_picture(tmp_path, monkeypatch, caplog):
    for number in range(3):
        photo(tmp_path / f"{number}.png")
    real = image_files._to_rgb
    calls = iter(range(9))

    def fails(image: Image.Image) -> Image.Image:
        if next(calls) == 1:
            raise ZeroDivisionError("in a plug-in")
        return real(image)

    monkeypatch.setattr(image_files, "_to_rgb", fails)
    with open_source(str(tmp_path)) as source:
        assert [frame.source_id for frame in source] == ["0.png", "2.png"]
        assert source.skipped == 1
    assert "1.png: expected a readable image (in a plug-in)" in caplog.text


def test_mutated_tiffs_are_skipped_without_a_word_of_the_library(tmp_path):
    rng = np.random.default_rng(3)
    for kind in ("tiff_lzw", "jpeg", "tiff_deflate", "packbits"):
        buffer = io.BytesIO()
        noise = Image.fromarray(rng.integers(0, 255, (48, 48, 3), dtype=np.uint8))
        noise.save(buffer, "tiff", compression=kind)
        for number in range(25):
            data = bytearray(buffer.getvalue())
            for at in rng.integers(8, len(data), 12):
                data[at] = rng.integers(0, 256)
            (tmp_path / f"{kind}-{number}.tif").write_bytes(data[: rng.integers(200, len(data))])
    photo(tmp_path / "z.png")
    program = (
        "import logging\n"
        "from gain_runtime.sources.opening import open_source\n"
        "logging.disable()\n"
        "with open_source(sys.argv[1]) as source:\n"
        "    print(sum(1 for _ in source) + source.skipped)\n"
    )
    done = run_without((), program, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "101\n", "")


def test_links_to_folders_above_do_not_go_round(tmp_path):
    folder = tmp_path / "d"
    (folder / "a").mkdir(parents=True)
    (folder / "b").mkdir()
    photo(folder / "a" / "one.png")
    (folder / "loop").symlink_to(folder)
    (folder / "a" / "up").symlink_to(folder / "b")
    (folder / "b" / "down").symlink_to(folder / "a")
    with open_source(f"{folder}/**/*.png") as source:
        assert len(list(source)) == 1
    # Depth does not matter, nor where the stars are.
    with open_source(f"{tmp_path}/**/a/*.png") as source:
        assert len(list(source)) == 1


def test_folders_that_cannot_be_listed_are_said(tmp_path, monkeypatch, caplog):
    photo(tmp_path / "a" / "one.png")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refuses(path: Path) -> object:
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(path)

    # As root, every folder can be listed.
    monkeypatch.setattr(image_files.os, "scandir", refuses)
    with open_source(f"{tmp_path}/**/*.png") as source:
        assert len(list(source)) == 1
    assert "the folder" in caplog.text
    assert "closed (Permission denied)" in caplog.text


def test_a_pipe_among_pictures_is_not_waited_for(tmp_path, caplog):
    photo(tmp_path / "a.png")
    os.mkfifo(tmp_path / "x.png")
    with open_source(str(tmp_path)) as source:
        assert len(list(source)) == 1
    assert "1 named pipes (read one with: gain-stream - < PIPE)" in caplog.text
    with pytest.raises(StreamError, match=r"got a named pipe; read it with: gain-stream - <"):
        load_image(tmp_path / "x.png")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("x" * 300, "the name is longer"),
        ("loop", "a link that leads back to itself"),
        ("closed/a.png", "permission denied"),
    ],
)
def test_paths_that_cannot_be_looked_at_are_one_line(tmp_path, monkeypatch, name, named):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    stat = Path.stat

    def refuses(self: Path, **rest: object) -> object:
        if "closed" in self.parts:
            raise PermissionError(errno.EACCES, "Permission denied")
        return stat(self, **rest)  # type: ignore[arg-type]

    # As root, no folder is closed.
    monkeypatch.setattr(Path, "stat", refuses)
    with pytest.raises(StreamError, match=named) as caught:
        open_source(str(tmp_path / name))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_files_are_told_by_their_bytes_and_what_is_left_out_is_said(tmp_path, caplog):
    buffer = io.BytesIO()
    Image.new("RGB", (40, 20), RED).save(buffer, "jpeg", exif=turned_exif())
    for name in ("a.jfif", "b.JPG_large", "c", "d.heic"):
        (tmp_path / name).write_bytes(buffer.getvalue())
    (tmp_path / "e.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(99))
    (tmp_path / "f.mp4").write_bytes(b"\0\0\0\x18ftypisom\0\0\2\0isomiso2" + bytes(99))
    (tmp_path / "g.nef").write_bytes(b"MM\0*" + bytes(99))
    (tmp_path / "notes.txt").write_text("of today\n")
    with open_source(str(tmp_path)) as source:
        frames = list(source)
    assert [frame.source_id for frame in frames] == ["a.jfif", "b.JPG_large", "c", "d.heic"]
    assert {frame.image.shape for frame in frames} == {(40, 20, 3)}
    (line,) = (record.getMessage() for record in caplog.records)
    assert "4 pictures; left out: 1 HEIC (convert with" in line
    for part in ("1 other files", "1 raw camera files", "1 videos"):
        assert part in line
    # One by one, the same: by the bytes, with the reason.
    with open_source(str(tmp_path / "a.jfif")) as source:
        assert next(iter(source)).image.shape == (40, 20, 3)
    for name, reason in (("e.heic", "HEIC"), ("g.nef", "raw data of a camera")):
        caplog.clear()
        with pytest.raises(StreamError, match=f"{name}: expected a readable image .{reason}"):
            open_source(str(tmp_path / name))
        # One line says it all.
        assert caplog.records == []


def test_a_raw_file_is_refused_although_pillow_reads_its_thumbnail(tmp_path):
    buffer = io.BytesIO()
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[50706] = b"\1\4\0\0"
    tags.tagtype[50706] = 1
    Image.new("RGB", (16, 12), RED).save(buffer, "tiff", tiffinfo=tags)
    (tmp_path / "a.tif").write_bytes(buffer.getvalue())
    assert Image.open(io.BytesIO(buffer.getvalue())).size == (16, 12)
    with pytest.raises(StreamError, match="raw data of a camera"):
        load_image(tmp_path / "a.tif")


def test_of_animated_files_the_first_picture_is_used_and_that_is_said(tmp_path, caplog):
    frames = [Image.new("RGB", (16, 12), colour) for colour in (RED, BLUE)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "b.tif", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "c.webp", save_all=True, append_images=frames[1:], lossless=True)
    with open_source(str(tmp_path)) as source:
        for frame in source:
            np.testing.assert_allclose(frame.image[6, 8], RED, atol=6)
    messages = [record.getMessage() for record in caplog.records]
    assert "a.gif: animated or of several pages; its first picture is used" in messages[0]
    assert "3 files are animated or of several pages" in messages[1]
    assert len(messages) == 2


def test_pictures_up_to_limit_are_read_and_larger_ones_are_counted(tmp_path, monkeypatch, caplog):
    # Pillow warns above half of its limit and refuses above the whole.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    monkeypatch.setattr(image_files, "MOST_PIXELS", 1000)
    for name, width in (("a", 20), ("b", 45), ("c", 60)):
        Image.new("RGB", (width, 20), RED).save(tmp_path / f"{name}.png")
    with open_source(str(tmp_path)) as source:
        assert [frame.source_id for frame in source] == ["a.png", "b.png"]
        assert source.skipped == 1
    (message,) = (record.getMessage() for record in caplog.records)
    assert "c.png: expected a readable image (more than 1,000 pixels" in message


def test_the_pointer_of_git_lfs_says_how_to_get_the_file(tmp_path, caplog):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"
    photo(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").write_bytes(pointer)
    (tmp_path / "clip.mp4").write_bytes(pointer)
    with open_source(str(tmp_path)) as source:
        assert len(list(source)) == 1
    assert "b.jpg: expected a readable image (the pointer that Git LFS left" in caplog.text
    with pytest.raises(StreamError, match="git lfs pull"):
        open_source(str(tmp_path / "clip.mp4"))
