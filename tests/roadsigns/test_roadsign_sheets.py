"""The command that draws the sheets."""

from __future__ import annotations

from pathlib import Path

import cv2
import pytest

from gain_scenes.roadsigns.__main__ import main


@pytest.mark.parametrize("kind", ["designs", "samples"])
def test_a_sheet_is_written(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "sheet.png"
    assert main([str(out), "--kind", kind]) == 0
    sheet = cv2.imread(str(out))
    assert sheet.shape[0] > 600
    assert sheet.std() > 20
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]


def test_a_file_of_another_kind_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "sheet.gif")]) == 1
    assert "sheet.gif" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
