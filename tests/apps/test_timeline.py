"""The timeline picture: what its curves hold, and that it is written whole or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from results import make_result

from gain_apps.streaming.outputs import TimelineSink, rolling_mean
from gain_apps.streaming.summary import ScoreBoard
from gain_core.errors import ConfigError, StreamError

pytest.importorskip("matplotlib", reason="the report extra is not installed")


def result(index, *, truth, source, adapted):
    condition = "clear" if index < 30 else "fog"
    return make_result(index, truth=truth, condition=condition, source=source, adapted=adapted)


def test_rolling_mean_uses_what_there_is_at_the_start():
    means = rolling_mean(np.array([1.0, 3.0, 5.0, 7.0]), 2)
    np.testing.assert_allclose(means, [1.0, 2.0, 4.0, 6.0])


@pytest.mark.parametrize("known", [pytest.param(True, id="truth"), pytest.param(False, id="none")])
def test_picture_is_drawn_on_close(tmp_path, known):
    target = tmp_path / "timeline.png"
    sink = TimelineSink(target)
    for index in range(60):
        truth = index % 3 if known else None
        sink.write(result(index, truth=truth, source=0, adapted=index % 3))
    assert not target.exists()
    sink.close()
    sink.close()
    with Image.open(target) as picture:
        assert picture.size == (1430, 880)
        assert len(picture.convert("RGB").getcolors(1 << 20) or ()) > 50
    assert [path.name for path in tmp_path.iterdir()] == ["timeline.png"]


@pytest.fixture
def labels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those of the curves, in the order in which they are drawn."""
    from matplotlib.axes import Axes

    found: list[str] = []
    plot = Axes.plot

    def recording(self: Axes, *args: object, **kwargs: object) -> object:
        found.append(str(kwargs.get("label")))
        return plot(self, *args, **kwargs)

    monkeypatch.setattr(Axes, "plot", recording)
    return found


def test_curves_state_the_accuracies(labels, tmp_path):
    timeline = TimelineSink(tmp_path / "t.png")
    for index in range(60):
        timeline.write(result(index, truth=index % 3, source=0, adapted=index % 3))
    timeline.close()
    # The source is right on a third of the frames at confidence 0.5, adapted always at 0.75.
    assert labels[:2] == ["frozen source: 33.3 %", "frozen source: 16.7 over the run"]
    assert labels[2:4] == ["adapted: 100.0 %", "adapted: 25.0 over the run"]


def test_picture_and_table_print_the_same_numbers(labels, tmp_path):
    """100 * 1279 / 2000 is 63.95, and 100 * (1279 / 2000) a little less: rounded apart."""
    timeline, board = TimelineSink(tmp_path / "t.png"), ScoreBoard()
    source, adapted = np.log([0.5, 0.3, 0.2]), np.log([0.75, 0.15, 0.1])
    for index in range(2000):
        truth = 0 if index < 1279 else 1
        timeline.write(result(index, truth=truth, source=0, adapted=0))
        board.add(source, adapted, truth=truth, condition=None)
    timeline.close()
    scores = board.to_dict()
    for name, drawn in (("source", labels[:2]), ("adapted", labels[2:4])):
        title = "frozen source" if name == "source" else name
        accuracy, ece = scores[name]["accuracy_percent"], scores[name]["ece_percent"]
        assert drawn == [f"{title}: {accuracy:.1f} %", f"{title}: {ece:.1f} over the run"]


def test_no_frame_leaves_no_picture(tmp_path):
    TimelineSink(tmp_path / "t.png").close()
    assert list(tmp_path.iterdir()) == []


def test_bad_targets_are_refused_before_the_run(tmp_path):
    with pytest.raises(ConfigError, match=r"t\.xyz: expected a picture ending in"):
        TimelineSink(tmp_path / "t.xyz")
    with pytest.raises(StreamError, match="does not exist"):
        TimelineSink(tmp_path / "none" / "t.png")
