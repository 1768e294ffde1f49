"""The scikit-learn estimator, panels from DataFrames, and what a fitted species shows in a notebook."""

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.model_selection import GridSearchCV

import fedmiss
from fedmiss import SiteMonthImputer, fit_counts, fit_trim, from_dataframe
from fedmiss.errors import ConfigError, InputError
from fedmiss.federation.results import AverageFit
from fedmiss.models.lowrank.settings import CountSettings


def world(seed=0, n=60, L=24, seen=0.4):
    rng = np.random.default_rng(seed)
    U, V = rng.normal(0, 0.5, (n, 2)), rng.normal(0, 0.7, (L, 2))
    mean = np.exp(2.0 + rng.normal(0, 0.8, n)[:, None] + rng.normal(0, 0.3, L)[None, :] + U @ V.T)
    X = rng.poisson(mean).astype(float)
    X[rng.random(X.shape) > seen] = np.nan
    return X, mean


CHECKS = """
import warnings
warnings.simplefilter("ignore")
from sklearn.utils.estimator_checks import check_estimator
from fedmiss import SiteMonthImputer
told = check_estimator(SiteMonthImputer(rank=1), on_fail=None, on_skip=None)
bad = [(c["check_name"], c["status"], str(c["exception"])) for c in told if c["status"] != "passed"]
assert not bad and len(told) > 40, bad
"""


@pytest.mark.slow
def test_it_passes_every_check_that_scikit_learn_has():
    """In a process of its own: one check is skipped unless this variable is set before SciPy is loaded."""
    env = os.environ | {"SCIPY_ARRAY_API": "1"}
    done = subprocess.run([sys.executable, "-c", CHECKS], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_grid_search_finds_the_rank_that_the_world_has():
    X, _ = world(4, n=90)
    search = GridSearchCV(SiteMonthImputer(), {"rank": [0, 2], "dispersion": ["negbin", "quasi"]}, cv=3).fit(
        X
    )
    assert search.best_params_["rank"] == 2
    assert 0.2 < search.best_score_ < 1
    by_itself = SiteMonthImputer(rank="auto").fit(X)
    assert by_itself.rank_ == by_itself.fit_.settings.rank in (1, 2, 3)
    with pytest.raises(ValueError, match="rank is 'best'"):
        SiteMonthImputer(rank="best").fit(X)


def test_the_score_is_one_for_a_matrix_without_noise_and_low_for_one_without_structure():
    rng = np.random.default_rng(0)
    clean = np.outer(np.exp(rng.normal(4, 1, 30)), np.exp(rng.normal(0, 1, 12)))
    imputer = SiteMonthImputer(rank=0, dispersion="none").fit(clean)
    assert imputer.score(clean) > 0.99
    noise = rng.poisson(20, clean.shape).astype(float)
    assert SiteMonthImputer(rank=0).fit(noise).score(noise) < 0.1
    with pytest.raises(ValueError, match="differ from each other in nothing"):
        imputer.score(np.full((2, 12), 3.0))


def test_it_fills_holes_better_than_effects_alone_and_leaves_counts_as_they_are():
    X, mean = world()
    error = {}
    for rank in (0, 2):
        filled = SiteMonthImputer(rank=rank).fit_transform(X)
        seen = np.isfinite(X)
        np.testing.assert_array_equal(filled[seen], X[seen])
        error[rank] = np.mean(np.log(filled[~seen] / mean[~seen]) ** 2)
    assert error[2] < 0.85 * error[0]


def test_transform_agrees_with_the_models_own_expectation_and_takes_new_rows():
    X, mean = world(1)
    one = SiteMonthImputer(rank=2).fit(X[:50])
    own = one.transform(X[:50])
    hole = ~np.isfinite(X[:50])
    assert np.abs(np.log(own[hole] / one.fit_.expected()[hole])).mean() < 0.1
    new = one.transform(X[50:])
    hole = ~np.isfinite(X[50:])
    assert np.abs(np.log(new[hole] / mean[50:][hole])).mean() < 0.45
    empty = one.transform(np.full((1, X.shape[1]), np.nan))
    assert np.isfinite(empty).all()


def test_frames_keep_their_names():
    X, _ = world(2, n=20, L=6)
    frame = pd.DataFrame(
        X, index=[f"s{i}" for i in range(20)], columns=[f"2024-{m:02d}" for m in range(1, 7)]
    )
    out = SiteMonthImputer(rank=1).set_output(transform="pandas").fit_transform(frame)
    assert list(out.columns) == list(frame.columns)
    assert list(out.index) == list(frame.index)
    assert not out.isna().any().any()


def test_frames_of_polars_and_pandas_are_taken_alike():
    X, _ = world(2, n=20, L=6)
    names = [f"2024-{m:02d}" for m in range(1, 7)]
    pandas = pd.DataFrame(X, columns=names)
    polars = pl.DataFrame(
        {n: [None if np.isnan(v) else int(v) for v in X[:, k]] for k, n in enumerate(names)}
    )
    imputer = SiteMonthImputer(rank=1).set_output(transform="polars").fit(polars)
    assert list(imputer.feature_names_in_) == names
    out = imputer.transform(polars)
    assert isinstance(out, pl.DataFrame)
    for frame in (pandas, pandas.astype("Int64")):
        np.testing.assert_array_equal(SiteMonthImputer(rank=1).fit(frame).transform(frame), out.to_numpy())
    i, m = np.nonzero(np.isfinite(X))
    long = pd.DataFrame({"site": [f"p{k:02d}" for k in i], "month": [names[k] for k in m], "count": X[i, m]})
    dates = long.assign(month=pd.to_datetime(long["month"]))
    meant = fit_counts(from_dataframe(long), CountSettings(rank=0)).expected()
    for table in (
        dates,
        pl.from_pandas(long),
        pl.from_pandas(dates),
        pl.from_pandas(dates).with_columns(pl.col("month").cast(pl.Date)),
    ):
        np.testing.assert_array_equal(
            fit_counts(from_dataframe(table), CountSettings(rank=0)).expected(), meant
        )
    year = (long["month"].str[5:].astype(int) + 2000).rename("year")
    a, b = (
        fit_trim(*(convert(c) for c in (long["site"], year, long["count"])))
        for convert in (lambda c: c, pl.from_pandas)
    )
    pd.testing.assert_frame_equal(a.index(), b.index())


def test_every_result_shows_itself_in_a_notebook_short_and_escaped(tmp_path):
    bad = "<script>alert(1)</script>"
    table = pd.DataFrame(
        {
            "site": ["a", "a", "b", "b"], "month": ["2024", "2025"] * 2, "count": [4, 6, 10, 15],
            "by": [bad] * 4,
        }
    )  # fmt: skip
    panel = from_dataframe(table, group="by")
    fit = fit_counts(panel, CountSettings(rank=0))
    counts = tmp_path / "counts.csv"
    counts.write_text("site,year,count\na,2001,3\n")
    folder = fedmiss.simulate.write_panel(
        fedmiss.simulate_panel(20, 24, 0.5, seed=1, groups=2), tmp_path / "panel"
    )
    shown = [
        panel,
        fit,
        AverageFit((fit,)),
        fit_trim(table["site"], [2024, 2025] * 2, table["count"]),
        fedmiss.federation.cross_validate(
            panel, [CountSettings(rank=0), CountSettings(rank=0, dispersion="none")], folds=2
        ),
        fedmiss.open_panel(folder),
        fedmiss.etl.read_counts(counts),
    ]
    laws = (
        ({"dispersion": "negbin"}, "negative binomial"),
        ({"dispersion": "quasi"}, "quasi-Poisson"),
        ({"dispersion": "none"}, "Poisson"),
        ({"time": "fixed"}, "Poisson with fixed times"),
        ({"family": "gaussian", "scale": "log1p"}, "Gaussian on log1p"),
    )
    for settings, law in laws:
        one = fit_counts(panel, CountSettings(rank=0, **settings))
        assert f"rank 0, {law}, " in repr(one)
        assert law in one._repr_html_()
    for thing in shown:
        html = thing._repr_html_()
        assert "<script" not in html
        assert "<th" in html
        assert len(html) < 3_000
        assert "manifest=" not in repr(thing)
        assert "array(" not in html
    assert "&lt;script" in panel._repr_html_()


@pytest.mark.parametrize(
    ("X", "words"),
    [([[1, -2], [3, 4]], "Negative values"), ([[np.nan] * 2] * 2, "no count at all"),
     ([[0, 0], [0, np.nan]], "every count in X is 0"), ([[np.inf, 1], [1, 1]], "infinity")],
)  # fmt: skip
def test_what_cannot_be_counts_is_refused(X, words):
    with pytest.raises(ValueError, match=words):
        SiteMonthImputer().fit(np.array(X, dtype=float))


def test_what_a_mask_hides_is_a_hole():
    X = np.outer([1.0, 2.0, 4.0, 8.0], [3.0, 6.0, 9.0])
    X[0, 1] = 1000.0
    masked = np.ma.masked_array(X, X == 1000.0)
    assert SiteMonthImputer(rank=0, dispersion="none").fit_transform(masked)[0, 1] < 20


@pytest.mark.parametrize("rank", [1.5, "many", None])
def test_a_rank_that_is_no_whole_number_is_refused(rank):
    with pytest.raises(ValueError, match="give a number of factors"):
        fedmiss.SiteMonthImputer(rank=rank).fit([[1, 2, 3], [2, 3, 4], [1, 1, 2]])


def test_what_lies_outside_a_panel_is_named_as_it_was_given():
    visits = fedmiss.Group.of("a", [-1, 0, 1], [0, 1, 2], [1, 2, 3])
    with pytest.raises(InputError, match=r"site index -1 is outside 0..1"):
        fedmiss.fit_counts(fedmiss.GroupPanel.of(2, 3, [visits]), CountSettings(rank=0))
    with pytest.raises(InputError, match=r"the calendar has parts of the shapes .*, and the panel 3 months"):
        fedmiss.GroupPanel.of(2, 3, [visits], (np.arange(2), np.arange(2)))
    fit = fedmiss.fit_counts(
        fedmiss.GroupPanel.of(2, 3, [fedmiss.Group.of("a", [0, 0, 1], [0, 1, 2], [1, 2, 3])]),
        CountSettings(rank=0),
    )
    for block in ((0,), ("a",), ([0.5],), ([0], 1)):
        with pytest.raises(ConfigError, match=r"must be a slice, or a list of indices as \[0\]"):
            fit.expected(*block)
    assert fit.expected([True, False]).shape == (1, fit.L)
    for block in (([2],), ([-3],), ([0], [0, 3]), ([True] * 3,)):
        with pytest.raises(ConfigError, match=r"must be below \d, the number of"):
            fit.expected(*block)
    assert fit.expected([0], [1, 2]).shape == fit.expected(slice(1), slice(1, 3)).shape == (1, 2)
    for calendar in (1.5, np.ones((3, 3)), (np.ones(3), np.ones(3), 1)):
        with pytest.raises(InputError, match="the calendar has parts of the shapes"):
            fedmiss.GroupPanel.of(2, 3, [visits], calendar)


def test_a_panel_from_a_frame_is_the_panel():
    X, _ = world(3, n=15, L=8)
    i, m = np.nonzero(np.isfinite(X))
    frame = pd.DataFrame(
        {"plot": [f"p{k:02d}" for k in i], "when": [f"2020-{k + 1:02d}" for k in m], "n": X[i, m]}
    )
    frame = pd.concat([frame, pd.DataFrame({"plot": ["p00"], "when": ["2020-01"], "n": [np.nan]})]).sample(
        frac=1, random_state=0
    )
    panel = from_dataframe(frame, site="plot", time="when", count="n")
    assert (panel.J, panel.L, panel.m) == (np.unique(i).size, np.unique(m).size, i.size)
    assert panel.calendar[0].tolist() == list(range(1, 9))
    settings = CountSettings(rank=1, season=False)
    got = fit_counts(panel, settings).expected()
    dates = frame.assign(when=pd.to_datetime(frame["when"]))
    np.testing.assert_array_equal(
        fit_counts(from_dataframe(dates, site="plot", time="when", count="n"), settings).expected(), got
    )
    halves = frame.assign(club=np.where(frame["plot"] < "p07", "a", "b"))
    parts = from_dataframe(halves, site="plot", time="when", count="n", group="club")
    np.testing.assert_allclose(fit_counts(parts, settings).expected(), got, rtol=1e-6)


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("month", ["2024-05", "2024-13"], "row 1: '2024-13' is no date"),
        ("month", ["2024-05", "2024-02-31"], "row 1: '2024-02-31' is no date"),
        ("month", ["2024-05", "2024-05 to 2024-09"], "row 1: '2024-05 to 2024-09' is no date"),
        ("count", pd.to_datetime(["2024-05-01", "2024-05-02"]), "the counts are of the type datetime64"),
        ("count", pd.to_timedelta([1, 2], unit="h"), "the counts are of the type timedelta64"),
        ("count", [1, 2j], "the counts are of the type complex128"),
        ("count", [1, -2], "row 1: the count is -2"),
        ("site", ["a", " "], "row 1: no site is given"),
    ],
)
def test_nothing_is_read_as_a_date_a_count_or_a_name_that_is_none(column, values, words):
    t = pd.DataFrame({"site": ["a", "b"], "month": ["2024-05", "2024-06"], "count": [1, 2]})
    with pytest.raises(InputError, match=words):
        from_dataframe(t.assign(**{column: values}))
    with pytest.raises(InputError, match="2 columns 'count'"):
        from_dataframe(pd.concat([t, t[["count"]]], axis=1))
    with pytest.raises(InputError, match="no column 'plot'"):
        from_dataframe(t, site="plot")


def test_names_are_read_as_the_importer_reads_them():
    t = pd.DataFrame({0: ["a", "a ", "b"], 1: ["2024-05", " 2024-06", "2024-05-31 23:30"], 2: [1, 2, 4]})
    panel = from_dataframe(t, site=0, time=1, count=2)
    assert panel.site_id.tolist() == ["a", "b"]
    assert panel.L == 2


@pytest.mark.parametrize("name", ["site", "month", "who", "club"])
def test_a_row_that_does_not_say_where_when_or_who_is_refused(name):
    t = pd.DataFrame(
        {"site": list("ab"), "month": pd.to_datetime(["2024-05-01", "2024-06-01"]), "count": [1, 2]}
    )
    t = t.assign(who=list("xy"), club=list("pq"))
    assert from_dataframe(t, observer="who", group="club").L == 2
    t.loc[1, name] = None
    with pytest.raises(InputError, match=f"row 1: no {name} is given"):
        from_dataframe(t, observer="who", group="club")
