"""What is drawn over frames."""

from __future__ import annotations

import numpy as np
import pytest
from results import make_info, make_result

from gain_apps.streaming.overlay import (
    ADAPTED,
    CHANGED,
    RIGHT,
    WRONG,
    Overlay,
    canvas_size,
    drawable,
    fitted,
    font,
)
from gain_runtime.frames import Ranked


def info_of(width, height, *, timed=True):
    rate_hz = 30.0 if timed else None
    return make_info(width_px=width, height_px=height, rate_hz=rate_hz, timed=timed)


def drawn_result(width=640, height=480, **changes):
    owl, fox = Ranked(index=1, label="owl", prob=0.4), Ranked(index=2, label="fox", prob=0.9)
    image = np.full((height, width, 3), 120, dtype=np.uint8)
    made = {"source_top": (owl,), "adapted_top": (fox,), "rate_hz": 25.0}
    return make_result(**({"image": image} | made | changes))


def has_colour(image: np.ndarray, colour: tuple[int, ...]) -> bool:
    return bool((image == np.array(colour[:3], dtype=np.uint8)).all(axis=-1).any())


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        pytest.param(1280, 720, (1280, 720), id="hd"),
        pytest.param(3840, 2160, (3840, 2160), id="4k"),
        pytest.param(32, 32, (640, 640), id="tiny"),
        pytest.param(641, 481, (640, 480), id="odd"),
        pytest.param(1080, 1920, (1080, 1920), id="phone"),
        pytest.param(20, 500, (640, 1536), id="sliver"),
        pytest.param(2000, 10, (2000, 834), id="strip"),
    ],
)
def test_a_result_fills_the_canvas_of_its_source(width, height, expected):
    info = info_of(width, height)
    assert canvas_size(info) == expected
    image = Overlay(info).render(drawn_result(width, height))
    assert image.shape == (expected[1], expected[0], 3)
    assert image.dtype == np.uint8


def test_photos_of_all_sizes_share_one_canvas():
    overlay = Overlay(info_of(300, 500, timed=False))
    shapes = {overlay.render(drawn_result(*size)).shape for size in ((300, 500), (50, 40), (9, 9))}
    assert shapes == {(720, 960, 3)}


def test_side_by_side_halves_differ_in_their_card_only():
    overlay = Overlay(info_of(3840, 2160), side_by_side=True)
    image = overlay.render(drawn_result(3840, 2160, truth=2))
    left, right = image[:, :640], image[:, -640:]
    assert image.shape == (360, 1284, 3)
    np.testing.assert_array_equal(left[:240], right[:240])
    # The source is wrong and the adapted prediction right.
    assert has_colour(left, WRONG)
    assert not has_colour(left, RIGHT)
    assert has_colour(right, RIGHT)
    assert not has_colour(right, WRONG)


def test_the_card_leaves_the_rest_of_the_frame_and_the_frame_itself_alone():
    result = drawn_result()
    image = Overlay(info_of(640, 480)).render(result)
    assert (result.frame.image == 120).all()
    assert (image[:330] == 120).all()
    assert (image[350:460] != 120).any(axis=-1).mean() > 0.9


def test_a_changed_prediction_is_marked():
    overlay = Overlay(info_of(640, 480))
    changed = overlay.render(drawn_result())
    same = overlay.render(drawn_result(source_top=drawn_result().adapted_top))
    assert has_colour(changed, CHANGED)
    assert not has_colour(same, CHANGED)
    assert has_colour(same, ADAPTED)
    # The truth is not known.
    assert not has_colour(changed, RIGHT)
    assert not has_colour(changed, WRONG)


def test_bars_grow_with_the_confidence():
    overlay = Overlay(info_of(640, 480))

    def filled(prob: float) -> int:
        top = (Ranked(index=1, label="", prob=prob),)
        image = overlay.render(drawn_result(source_top=top, adapted_top=top, strength=0.0))
        return int((image == np.array(ADAPTED[:3], dtype=np.uint8)).all(axis=-1).sum())

    counts = [filled(prob) for prob in (0.0, 0.1, 0.5, 1.0)]
    assert counts == sorted(set(counts))


def test_the_region_is_outlined_where_it_lies():
    result = drawn_result(320, 240, region=(40, 30, 120, 90))
    image = Overlay(info_of(320, 240)).render(result)
    assert image.shape == (480, 640, 3)
    green = (image[:200] == np.array(ADAPTED[:3], dtype=np.uint8)).all(axis=-1)
    rows, columns = np.nonzero(green)
    assert (rows.min(), rows.max()) == pytest.approx((60, 180), abs=2)
    assert (columns.min(), columns.max()) == pytest.approx((80, 240), abs=2)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"strength": 1.0, "gain": 1e9}, id="large"),
        pytest.param({"strength": 0.0, "gain": 0.0, "rate_hz": 0.0}, id="zero"),
        pytest.param({"region": (-50, -50, 9000, 9000)}, id="region beyond the frame"),
        pytest.param({"condition": "夜" * 400}, id="long condition"),
        pytest.param({"source_top": (Ranked(index=0, label="x" * 999, prob=1.0),)}, id="long"),
        pytest.param({"source_top": (Ranked(index=0, label="\n\t", prob=0.0),)}, id="blank"),
    ],
)
def test_extreme_values_are_drawn(changes):
    assert Overlay(info_of(640, 480)).render(drawn_result(**changes)).shape == (480, 640, 3)


def test_the_same_result_is_drawn_once():
    overlay = Overlay(info_of(640, 480))
    result = drawn_result()
    assert overlay.render(result) is overlay.render(result)
    assert overlay.render(drawn_result()) is not overlay.render(result)


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        pytest.param("great_grey_owl", "great grey owl", id="underscores"),
        pytest.param("crème brûlée", "creme brulee", id="accents"),
        pytest.param("süß, Łódź", "suss, Lodz", id="letters of their own"),
        pytest.param("дорожный знак", "class 7", id="Cyrillic"),
        pytest.param("日本語 A", "class 7", id="mostly Chinese"),
        pytest.param("", "class 7", id="empty"),
        pytest.param("STOP “all way”", 'STOP "all way"', id="quotes"),
    ],
)
def test_labels_are_spelled_in_ascii(label, expected):
    assert drawable(label, fallback="class 7") == expected


def test_a_long_label_is_cut_to_its_width():
    cut = fitted("a very long label indeed", 20, 100)
    assert cut.endswith("...")
    assert font(20).getlength(cut) <= 100
    assert fitted("short", 20, 100) == "short"
