"""The command that draws the contact sheet."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gain_scenes.corruptions.__main__ import contact_sheet, main, read_photo

PHOTO = Path(__file__).parent / "photo.png"


def test_sheet_has_fifteen_rows_of_six_different_tiles(photo):
    sheet = contact_sheet(photo[::4, ::4], tile_px=40)
    assert sheet.shape == (24 + 15 * 44, 150 + 6 * 44, 3)
    tiles = sheet[24:, 150:].reshape(15, 44, 6, 44, 3)[:, :40, :, :40].swapaxes(1, 2)
    assert len(np.unique(tiles[:, 0].reshape(15, -1), axis=0)) == 1
    corrupted = tiles[:, 1:].reshape(75, -1)
    assert len(np.unique(corrupted, axis=0)) == 75


def test_command_writes_the_sheet_and_nothing_else(tmp_path):
    out = tmp_path / "new" / "sheet.png"
    command = [sys.executable, "-m", "gain_scenes.corruptions", str(PHOTO), "--out", str(out)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(out)
    with Image.open(out) as sheet:
        assert sheet.size == (150 + 6 * 172, 24 + 15 * 172)
    assert [path.name for path in out.parent.iterdir()] == ["sheet.png"]


@pytest.mark.parametrize("content", [None, b"no picture"], ids=["missing", "not-a-picture"])
def test_bad_photo_is_one_line_and_status_1(tmp_path, capsys, content):
    photo = tmp_path / "photo.jpg"
    if content is not None:
        photo.write_bytes(content)
    out = tmp_path / "sheet.jpg"
    assert main([str(photo), "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: photo: expected a picture file, got {photo}")
    assert error.count("\n") == 1
    assert not out.exists()


def test_unknown_format_is_refused_before_the_work(tmp_path, capsys):
    assert main([str(PHOTO), "--out", str(tmp_path / "sheet.pdf")]) == 1
    assert "--out: expected one of .jpg, .jpeg, .png" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_photo_is_turned_upright_and_cropped_to_its_middle(tmp_path):
    picture = Image.new("RGB", (300, 500), (255, 0, 0))
    picture.paste((0, 0, 255), (0, 250, 300, 500))
    exif = picture.getexif()
    exif[0x0112] = 6  # shown a quarter turn clockwise
    path = tmp_path / "turned.jpg"
    picture.save(path, exif=exif, quality=95)
    photo = read_photo(path)
    assert photo.shape == (224, 224, 3)
    left, right = photo[:, 30].mean(axis=0), photo[:, -30].mean(axis=0)
    assert left[2] > 200 > 60 > left[0]
    assert right[0] > 200 > 60 > right[2]
