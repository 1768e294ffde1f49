"""The base map, hexagons, alerts, and TRIM beside the index."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from fedmiss.errors import ConfigError
from fedmiss.federation.hub.priors import SMALLEST
from fedmiss.report import maps
from fedmiss.report.analysis import Analysis, ReportSettings, trim_beside
from fedmiss.report.basemap import LAND, SEA, draw_basemap, draw_scale, empty_map, frame_of, on_map
from fedmiss.report.changes import alert_of
from fedmiss.report.classes import by_limits
from fedmiss.report.html import cite_as, photo_uri
from fedmiss.report.inputs import LEAST_VARIANCE, read_inputs
from fedmiss.report.maps import _nearest_centre, _size_legend, hexagons, site_map
from fedmiss.report.prose import model_caveats
from fedmiss.report.question import stored
from fedmiss.report.sections.model import _cv, _facts
from fedmiss.report.sections.places import _sites
from fedmiss.report.sections.question import _places
from fedmiss.report.style import figure, style, svg_text
from fedmiss.resources import resource

from .conftest import World, analysed, make_folders


def is_land(lon, lat, piece="world"):
    """Even-odd rule over all rings of a piece."""
    with np.load(resource("reports", "basemap", f"{piece}.npz")) as file:
        points, start = file["land"].astype(float), file["land_start"]
    inside = False
    for ring in np.split(points, start[1:]):
        x, y = ring[:-1].T
        u, v = ring[1:].T
        with np.errstate(divide="ignore", invalid="ignore"):
            at = (u - x) * (lat - y) / (v - y) + x
        for turn in (-360.0, 0.0, 360.0):  # rings go on beyond the date line
            inside ^= bool((((y > lat) != (v > lat)) & (lon + turn < at)).sum() % 2)
    return inside


@pytest.mark.parametrize(
    ("place", "lon", "lat", "land"),
    [("Paris", 2.35, 48.85, True), ("Nairobi", 36.8, -1.3, True), ("Alice Springs", 133.9, -23.7, True),
     ("Caspian", 51.0, 42.0, False), ("Biscay", -5.0, 45.5, False), ("Hudson Bay", -85.0, 60.0, False),
     ("Iceland", -18.5, 64.6, True), ("Denmark Strait", -24.0, 67.5, False), ("Wrangel Island", -179.5, 71.2, True),
     ("off Wrangel Island", 170.0, 71.2, False), ("Taveuni", -179.97, -16.85, True), ("South Pole", 0.0, -89.9, True)],
)  # fmt: skip
def test_the_base_map_knows_land_from_water(place, lon, lat, land):
    assert is_land(lon, lat) is land, place


def test_the_finer_piece_agrees_with_the_coarse_one_away_from_the_coast():
    for lon, lat, land in ((-80.8, 26.2, True), (-79.7, 26.0, False), (-82.9, 26.5, False)):
        assert is_land(lon, lat, "florida") is is_land(lon, lat) is land


@pytest.mark.parametrize(
    ("width", "lon", "lat"), [(0.0, -80.5, 25.8), (1.0, 5.0, 47.0), (30.0, -98.0, 39.0), (2.0, 179.5, -17.0)]
)
def test_a_frame_holds_its_places_and_the_page_stays_light(width, lon, lat):
    rng = np.random.default_rng(1)
    x = np.minimum(lon + width * (rng.random(30) - 0.5), 180.0)
    y = lat + 0.7 * width * (rng.random(30) - 0.5)
    f = frame_of(x, y)
    assert f.west <= x.min() <= x.max() <= f.east
    assert f.south <= y.min() <= y.max() <= f.north
    assert f.km > 18.9
    assert 0.5 < (f.north - f.south) * f.squeeze / (f.east - f.west) < 1.3
    with style():
        fig = figure(height=4)
        ax = fig.subplots()
        bare = len(svg_text(fig))
        draw_basemap(ax, f)
        draw_scale(ax, f)
        assert len(svg_text(fig)) - bare < 150_000
    assert len(ax.patches) == 1  # land: every one of these frames has some
    text = next(t.get_text() for t in ax.texts)
    length = float(text.split()[0])
    assert 0.08 < length / f.km <= 0.26


def test_a_map_of_places_on_both_sides_of_the_date_line_shows_them_and_not_the_world():
    """Fiji's sites stood at both edges of a map of the whole earth."""
    given, y = np.array([177.3, 179.9, -179.2, -178.4]), np.array([-17.7, -16.8, -17.0, -18.9])
    x = on_map(given)
    assert x == pytest.approx([177.3, 179.9, 180.8, 181.6])
    frame = frame_of(x, y)
    assert frame.km < 700
    _, ax = empty_map(frame, more=0.5, least=3.0)
    assert ax.patches[0].get_path().contains_point((180.0, -16.85))  # Taveuni, on both sides of the line
    assert ax.patches[0].get_path().vertices[:, 0].max() > 181
    assert on_map(given[:2]) == pytest.approx(given[:2])
    for around in ([-120.0, 10.0, 140.0], [-1.0, 2.0], []):
        assert on_map(around) == pytest.approx(around)


def test_islands_of_a_lake_are_land():
    """Rings were joined before the lake was cut out, and five islands of the Caspian Sea went with it."""
    fig, ax = empty_map(frame_of(np.array([49.6, 50.4]), np.array([44.7, 45.3])), more=0.5, least=3.0)
    fig.canvas = FigureCanvasAgg(fig)
    fig.canvas.draw()
    image = np.asarray(fig.canvas.buffer_rgba())[::-1]
    colour = {}
    for name, place in (("island", (50.02, 44.98)), ("lake", (49.75, 44.85))):
        across, up = (int(v) for v in ax.transData.transform(place))
        colour[name] = tuple(image[up, across, :3] / 255)
    assert colour["island"] == pytest.approx(to_rgb(LAND), abs=0.01)
    assert colour["lake"] == pytest.approx(to_rgb(SEA), abs=0.01)


@pytest.mark.parametrize("south", [-89.95, 89.2])
def test_a_map_of_a_pole_holds_its_places(south):
    """The frame ended at 89 degrees, and the sites lay outside of it."""
    x, y = np.linspace(-170.0, 170.0, 9), np.linspace(south, south + 0.7, 9)
    frame = frame_of(x, y)
    assert frame.south <= y.min() < y.max() <= frame.north <= 90.0


@pytest.mark.parametrize("coarse", [0.0, 0.5])
def test_a_map_across_the_date_line_keeps_the_longitudes_of_its_table(full, coarse):
    east = np.linspace(-2.0, 2.0, len(full.sites))
    sites = full.sites.assign(longitude=np.where(east > 0, east - 180, east + 180), latitude=-17.0)
    settings = replace(full.settings, coarse_map=coarse)
    moved = replace(full, sites=sites, settings=settings)
    plot = site_map(moved)
    assert plot.data["longitude"].abs().between(177.9, 180).all()
    assert (plot.data["longitude"] < 0).any()
    assert (plot.data["longitude"] > 0).any()
    places = np.array(list(_places(moved, plot).values()))
    width, height = 72 * plot.figure.get_size_inches()
    assert ((places > 0) & (places < (width, height))).all()
    assert np.ptp(places[:, 0]) < 0.8 * width


@pytest.mark.slow
def test_hexagons_are_the_nearest_and_keep_the_sums(full):
    rng = np.random.default_rng(2)
    x, y = 6 * rng.random(500), 5 * rng.random(500)
    centre = _nearest_centre(x, y)
    distance = np.hypot(*(centre - np.column_stack([x, y])).T)
    assert distance.max() <= 1 / np.sqrt(3) + 1e-6  # no point is farther than a corner
    unique = np.unique(centre, axis=0)
    assert (
        np.hypot(unique[:, 0] - x[:, None], unique[:, 1] - y[:, None]).min(axis=1) >= distance - 1e-6
    ).all()
    table = full.sites.assign(visits=1)
    frame = frame_of(table["longitude"].to_numpy(), table["latitude"].to_numpy())
    h = hexagons(table, full, frame)
    assert (h["n_sites"].sum(), h["visits"].sum()) == (40, 40)
    assert h["mean_total"].sum() == pytest.approx(table["mean_total"].sum())
    assert h["percent_per_year"].to_numpy() == pytest.approx(np.full(len(h), 100 * np.expm1(-0.04)), rel=1e-6)


def test_hexagons_of_rounded_places_keep_their_trends(full, monkeypatch):
    """All lost their colour: "0 of them decline; the median change is n/a per year"."""
    monkeypatch.setattr(maps, "HEXAGONS_FROM", 3)
    plots = [
        site_map(replace(full, settings=replace(full.settings, coarse_map=coarse))) for coarse in (0, 1e-4)
    ]
    assert all("the median change is −3.9 % per year" in plot.alt for plot in plots)
    # A hexagon where the species was never found showed the trend of next to no birds.
    sites = full.sites.assign(percent_per_year=full.sites["percent_per_year"].mask(full.sites.index > 4))
    plot = site_map(replace(full, sites=sites))
    assert "Without a colour: no trend, as where the species was never found." in plot.caption
    assert 0 < plot.data["percent_per_year"].notna().sum() <= 5


def test_sites_share_one_trend_where_no_averaged_model_lets_them_differ(full):
    assert LEAST_VARIANCE == SMALLEST

    def one(*members):
        known = [{"family": "poisson", "features": [], "occupancy": []} | member for member in members]
        results = {**full.data.fit["results"], **known[0], "members": known if len(known) > 1 else []}
        return replace(full.data, fit={**full.data.fit, "results": results}).one_trend

    flat = {"rank": 0, "slopes": False, "site_variances": [0.8]}
    assert one(flat)
    assert one(flat | {"features": ["smooth"]})  # levels alone follow it
    # Index and regions are of the average, whose other models know trends of sites.
    assert not one(flat, {"rank": 1, "slopes": False, "site_variances": [0.8, 0.02]})
    assert not one(flat | {"occupancy": [0.9, 0.1, 0.1]})
    # Slopes and patterns that switched themselves off: intervals would be those of the common trend.
    off = {"rank": 1, "slopes": True, "site_variances": [0.8, SMALLEST, SMALLEST]}
    assert one(off, flat)
    assert one(off | {"features": ["visits"]})
    assert not one(off | {"features": ["regions"]})
    # Slopes that could follow abundance and do not.
    assert one(off | {"features": ["visits", "abundance"], "abundance": 0.0})
    assert not one(off | {"features": ["abundance"], "abundance": -0.02})
    assert not one(off | {"site_variances": [0.8, SMALLEST, 0.02]})
    assert not one(off | {"site_variances": None})


def test_a_site_where_the_species_was_never_found_has_no_trend(full):
    """It was called a strong increase of next to no birds, with limits on the estimate: replicates have the same zeros."""
    everywhere = full.data.cells.assign(n_detected=full.data.cells["n_detected"].clip(lower=1))
    full = analysed(replace(full.data, cells=everywhere))
    here, before = full.data.cells["site_index"] == 3, full.sites
    assert np.isfinite(before.loc[3, ["slope", "slope_se"]].astype(float)).all()
    cells = full.data.cells.assign(n_detected=full.data.cells["n_detected"].mask(here, 0))
    after = analysed(replace(full.data, cells=cells))
    assert after.sites.loc[3, ["slope", "slope_se", "percent_per_year"]].isna().all()
    assert after.sites.loc[3, "trend_class"] == "not classified"
    pd.testing.assert_frame_equal(after.sites.drop(index=3), before.drop(index=3))
    said = "A site where the species was never found has no trend."
    assert [said in _sites(each).note for each in (full, after)] == [False, True]


@pytest.mark.slow
def test_a_map_of_one_trend_shows_means_and_visits_and_no_trend(tmp_path):
    plot = site_map(analysed(make_folders(tmp_path, World(rank=0))))
    assert "visits" in plot.caption
    assert "decline" not in plot.alt


@pytest.mark.parametrize(
    ("change", "high", "alert"),
    [(-60, -10, "decline above 50 %"), (-50, -1, "decline above 50 %"), (-49.9, -1, "decline above 25 %"),
     (-25, -0.1, "decline above 25 %"), (-24.9, -1, ""), (-80, 0.5, ""), (-80, np.nan, ""), (40, 60, "")],
)  # fmt: skip
def test_alerts_need_size_and_certainty(change, high, alert):
    assert alert_of(change, high) == alert


@pytest.mark.slow
def test_trim_beside_speaks_of_the_same_cells(tmp_path):
    data = read_inputs(**make_folders(tmp_path, World(seen=0.6)))
    assert trim_beside(analysed(data)) is None
    a = analysed(data, trim=True)
    both = trim_beside(a).table
    assert both["year"].tolist() == a.years.year[a.years.used].tolist()
    assert both.loc[0, "trim"] == both.loc[0, "index"] == 100.0
    # the world declines by 4 % a year at every site: both see it
    for column in ("index", "trim"):
        assert np.polyfit(both["year"], np.log(both[column]), 1)[0] == pytest.approx(-0.04, abs=0.015)
    # the interval is that of the rule that names the class
    limits = {}
    for rule in ("pecbms", "rtrim"):
        beside = trim_beside(analysed(data, trim=True, rule=rule))
        limits[rule] = [beside.numbers[f"trim_percent_{end}"] for end in ("lo", "hi")]
        assert by_limits(*(1 + at / 100 for at in limits[rule])) in beside.trend
    slope = np.log1p(beside.numbers["trim_percent"] / 100)
    half = [np.log1p(at / 100) - slope for at in limits["rtrim"]]
    assert half[1] == pytest.approx(-half[0], rel=1e-9)
    # Student's quantile of 12 degrees of freedom
    assert np.diff(limits["rtrim"]) > np.diff(limits["pecbms"]) * 1.05


@pytest.mark.slow
def test_units_citation_and_photo(folders, tmp_path):
    data = read_inputs(**folders)
    a = analysed(data, unit="nests", author="A Club", url="https://x.org/r")
    assert a.unit == "nests"
    for word in ("A Club (2026)", "2008 to 2021", "fedmiss", "https://x.org/r", "Made by a test"):
        assert word in cite_as(a)
    with pytest.raises(ConfigError, match="unit is ' '"):
        ReportSettings(unit=" ")
    (tmp_path / "p.gif").write_bytes(b"GIF89a")
    for name, words in (("p.gif", "neither a JPEG nor a PNG"), ("q.png", "No such file")):
        with pytest.raises(ConfigError, match=words):
            photo_uri(str(tmp_path / name))
    (tmp_path / "p.png").write_bytes(b"\x89PNG" + b"0" * 400_001)
    with pytest.raises(ConfigError, match=r"400 kB \(at most 400 kB\)"):
        photo_uri(str(tmp_path / "p.png"))


@pytest.mark.slow
def test_the_imputed_share_is_that_of_the_years_and_months_of_the_trend(tmp_path):
    """A last year cut short is not in the trend, so its cells do not count."""
    a = analysed(make_folders(tmp_path, World(last_months=3, seen=0.5)))
    used = a.yearly[a.yearly["used"]]
    assert len(used) == len(a.yearly) - 1
    want = (used["imputed_share"] * used["total"]).sum() / used["total"].sum()
    assert a.coverage.share_imputed_total == pytest.approx(want, rel=1e-12)
    whole = float(np.where(a.data.observed, 0, a.data.expected).sum() / a.data.expected.sum())
    assert abs(whole - want) > 1e-5


@pytest.mark.parametrize(
    ("most", "labels"),
    [(47.0, ["40", "10", "2"]), (3400.0, ["3,000", "750", "150"]), (0.5, ["0.5", "0.125", "0.025"])],
)
def test_circles_of_the_legend_are_as_large_as_they_say(most, labels):
    fig, areas = figure(), np.array([10.0, 400.0])
    _size_legend(fig, pd.DataFrame({"mean_total": [1e-3, most]}), areas, "birds")
    handles, said = fig.legends[0].legend_handles, [text.get_text() for text in fig.legends[0].get_texts()]
    assert said == labels
    for handle, label in zip(handles, said, strict=True):
        # area of a circle, in squares of a point
        want = max(float(label.replace(",", "")) * areas.max() / most, 9.0)
        assert handle.get_markersize() ** 2 == pytest.approx(want, rel=0.02)


def test_one_site_of_presence_has_a_chance(full, monkeypatch):
    """Its mean, 0.3, stood under "sites with a find"."""
    monkeypatch.setitem(full.data.fit["results"], "family", "bernoulli")
    assert "Mean, chance of presence" in _sites(full).columns
    assert stored(full)["unit"] == "chance of presence"


@pytest.mark.parametrize(
    ("family", "terms", "error"),
    [
        ("bernoulli", "coefficients", None),  # of a chance there is no logarithm of birds to err in
        ("gaussian", "coefficients", "Error, birds"),
        ("poisson", "exponents", "Error of log(1 + birds)"),
    ],
)
def test_effort_and_errors_are_named_on_the_scale_of_the_family(full, monkeypatch, family, terms, error):
    """Log odds and birds were called exponents, and the error of Gaussian predictions, in birds, one of logarithms."""
    monkeypatch.setitem(full.data.fit["results"], "family", family)
    assert any(title == f"Effort in the model ({terms})" for title, _ in _facts(full))
    assert [title for title in _cv(full).columns if title.startswith("Error")] == ([error] if error else [])
    assert any("overlooked" in said for said in model_caveats(full, birds=True)) == (family == "bernoulli")


@pytest.mark.parametrize(
    ("method", "move"), [("fast", "again with bootstrap"), ("fedmissem", "with --method fast")]
)
def test_who_has_no_intervals_is_told_a_method_that_makes_them(full, monkeypatch, method, move):
    """The other methods have no replicates to ask for."""
    monkeypatch.setitem(full.data.fit["results"], "method", method)
    monkeypatch.setattr(Analysis, "n_draws", 0)
    assert any(f"Fit {move}" in one for one in model_caveats(full, birds=True))


def test_a_map_shows_where_north_is():
    fig, ax = empty_map(frame_of(np.array([7.0, 8.0]), np.array([46.0, 47.0])), more=0.5, least=3.0)
    north = next(text for text in ax.texts if text.get_text() == "N")
    scale = next(text for text in ax.texts if text.get_text().endswith(" km"))
    fig.canvas.draw()
    assert north.get_window_extent().y0 > scale.get_window_extent().y1  # neither covers the other
