"""What figures draw: counted and imputed cells told apart, sites where they are, nothing drawn twice."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import LogNorm

from fedmiss.report.figures import _end_axis, monthly_smooth, regions, trend
from fedmiss.report.fit_figures import convergence
from fedmiss.report.inputs import read_inputs
from fedmiss.report.maps import _paint, heatmap, site_map
from fedmiss.report.sections.model import _structure
from fedmiss.report.small_pictures import sparkline
from fedmiss.report.style import CLASS_COLOURS, figure, png_bytes, style, svg_text
from fedmiss.report.tables import _fitted

from .conftest import World, analysed, make_folders


def test_counted_cells_are_blue_and_imputed_cells_grey_and_darker_is_more():
    value = np.array([[1.0, 10.0, 100.0], [1.0, 10.0, 100.0]])
    seen = np.array([[True] * 3, [False] * 3])
    image = _paint(value, seen, LogNorm(1.0, 100.0)).astype(int)
    blue, grey = image[0], image[1]
    assert (blue[:, 2] - blue[:, 0] > 20).all()
    assert (np.ptp(grey[:, :3], axis=1) <= 2).all()
    for row in (blue, grey):
        assert (np.diff(row[:, :3].sum(axis=1)) < 0).all()
    # a small number is not white, so it is not taken for an empty cell
    assert grey[0, :3].max() < 250


def test_figures_are_the_same_bytes_and_carry_no_date():
    def draw():
        fig = figure()
        ax = fig.subplots()
        ax.plot([1, 2, 3], [3, 1, 2])
        ax.fill_between([1, 2, 3], [1, 1, 1], [2, 2, 2])
        return svg_text(fig), png_bytes(fig)

    first, second = draw(), draw()
    assert first == second
    assert "<dc:date>" not in first[0]


def test_classes_have_colours_that_can_be_told_apart():
    colours = list(CLASS_COLOURS.values())
    rgb = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in colours], dtype=float)
    apart = np.abs(rgb[:, None] - rgb[None]).sum(axis=2)
    assert (apart[~np.eye(len(colours), dtype=bool)] > 60).all()


def test_sparkline_follows_the_index():
    years = pd.DataFrame(
        {"year": [2000, 2001, 2002], "used": [True, True, True], "index": [100.0, 50.0, 0.0]}
    )
    text = sparkline(years)
    points = [tuple(map(float, p.split(","))) for p in text.split('points="')[1].split('"')[0].split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert points[0][1] < points[1][1] < points[2][1]  # down on the page is less
    assert 'aria-label="index 2000 to 2002: 100 to 0"' in text
    assert ">0</text>" in text  # the last value
    rising = pd.DataFrame({"year": [2000, 2001], "used": [True, True], "index": [100.0, 200.0]})
    dashed = float(re.search(r'd="M2 ([\d.]+)H\d+" stroke="[^"]+" stroke-width="0.8"', sparkline(rising))[1])
    first = float(sparkline(rising).split('points="')[1].split()[0].split(",")[1])
    assert dashed == first == 14.0  # the base lies half way up to twice the base
    assert sparkline(years.head(1)) == ""


def test_no_index_is_drawn_where_no_year_has_one(small):
    data = read_inputs(**small)
    data.cells[["n_detected", "count_sum"]] = 0
    a = analysed(data)
    plot = trend(a)
    assert len(plot.figure.axes) == 1
    assert plot.caption.startswith("The species was never found, so no year has an index.")
    assert heatmap(a) is None
    assert monthly_smooth(a) is None
    assert "its colour the number of visits. The species was never found" in site_map(a).caption
    assert a.sites["percent_per_year"].isna().all()


@pytest.mark.slow
def test_a_region_has_a_dot_where_the_table_has_a_number(folders):
    data = read_inputs(**folders)
    del data.draws["XX-02"]  # no replicates: no interval, and then no number either
    plot = regions(analysed(data))
    assert set(plot.data["region"]) == {"XX-00", "XX-01"}
    assert "in the table only" in plot.caption


def test_a_trend_that_is_not_drawn_is_not_described(tmp_path):
    plot = trend(analysed(make_folders(tmp_path, World(n_years=2))))  # two years have no interval
    assert "trend" not in plot.alt
    assert "Orange" not in plot.caption


def test_an_interval_far_beyond_the_index_does_not_hide_it_and_is_said():
    """One flock of 50,000 gave a year an interval to 12,000, and the index lay flat on the axis."""
    with style():
        ax = figure(height=3).subplots()
        for index, high, top, cut in (
            ([100.0, 80.0], [np.nan, 12_000.0], 500.0, True), ([100.0, 90.0], [np.nan, 130.0], 140.4, False),
            ([100.0, 2_000.0], [np.nan, 9_000.0], 9_720.0, False), ([100.0], [np.nan], 108.0, False),
            ([np.nan, np.nan], [np.nan, np.nan], 108.0, False),  # a base year without birds
        ):  # fmt: skip
            assert ("intervals go on beyond it" in _end_axis(ax, index, high)) == cut
            assert ax.get_ylim() == pytest.approx((0, top))


def test_the_caption_says_where_the_axis_ends(full):
    wide = replace(full, yearly=full.yearly.assign(index_hi=full.yearly["index_hi"] * 100))
    assert "The axis ends at five times" in trend(wide).caption
    assert "The axis ends" not in trend(full).caption


def test_the_caption_names_all_years_that_are_left_out(full):
    """Of 15 it named six."""
    for out, words in (
        (range(1, 7), "6 years ({1} to {6})"),
        ((0, 1, 2, 3, 4, 5, 7), "{0}, {1}, {2}, {3}, {4}, {5} and {7}"),
    ):
        yearly = full.yearly.assign(used=~np.isin(np.arange(len(full.yearly)), out))
        a = replace(full, yearly=yearly)
        assert f"not in the trend: {words.format(*yearly['year'])}." in trend(a).caption


def test_no_message_is_drawn_where_their_bytes_are_not_known(folders):
    """The journal of a study holds no bytes of a round: an organisation's own report said that 0 MB were sent."""
    data = read_inputs(**folders)
    drawn = convergence(analysed(data))
    assert "MB were sent" in drawn.alt
    assert "Below: size of all messages so far" in drawn.caption
    none = convergence(analysed(replace(data, trace=data.trace.assign(bytes_up=0, bytes_down=0))))
    assert len(none.figure.axes) == 1
    assert "MB" not in none.alt
    assert "Below" not in none.caption


@pytest.mark.parametrize(("start", "word"), [(1.2, "about 1 was"), (3.0, "about 3 were")])
def test_one_occupied_site_is_in_the_singular(folders, start, word, monkeypatch):
    analysis = analysed(read_inputs(**folders))
    facts = {"occupancy": [0.5, 0.1, 0.1], "occupied": [start, 4.0]}
    monkeypatch.setattr(
        type(analysis.data), "fact", lambda self, name, default=None: facts.get(name, default)
    )
    assert any(f"{word} occupied in its first year, 4 in its last" in said for said in _structure(analysis))


@pytest.mark.parametrize(
    ("family", "scale", "factor"),
    [
        ("poisson", "raw", True),
        ("gaussian", "log1p", True),
        ("gaussian", "raw", False),
        ("bernoulli", "raw", False),
    ],
)
def test_what_new_and_later_observers_count_is_in_percent_where_effort_multiplies(
    folders, family, scale, factor, monkeypatch
):
    """Log odds and birds are no percentages."""
    analysis = analysed(read_inputs(**folders))
    facts = {"family": family, "scale": scale, "learning": 0.3, "skill": 0.02}
    monkeypatch.setattr(
        type(analysis.data), "fact", lambda self, name, default=None: facts.get(name, default)
    )
    said, table = " ".join(_structure(analysis)), _fitted(analysis)
    assert ("a new observer counts 74 %" in said) == ("new_observer" in table) == factor
    assert ("come a year later differ by +2.0 %" in said) == ("later_observers_percent" in table) == factor
