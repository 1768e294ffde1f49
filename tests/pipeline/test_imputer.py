"""The scikit-learn estimator, panels from DataFrames, and what a fitted species shows in a notebook."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.utils.estimator_checks import check_estimator

from fedmiss import SiteMonthImputer, fit_counts, from_dataframe
from fedmiss.errors import InputError
from fedmiss.models.lowrank.settings import CountSettings


def world(seed=0, n=60, L=24, seen=0.4):
    rng = np.random.default_rng(seed)
    U, V = rng.normal(0, 0.5, (n, 2)), rng.normal(0, 0.7, (L, 2))
    mean = np.exp(2.0 + rng.normal(0, 0.8, n)[:, None] + rng.normal(0, 0.3, L)[None, :] + U @ V.T)
    X = rng.poisson(mean).astype(float)
    X[rng.random(X.shape) > seen] = np.nan
    return X, mean


def test_it_is_an_estimator_as_scikit_learn_has_them():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(SiteMonthImputer(rank=1))


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


@pytest.mark.parametrize(
    ("X", "words"),
    [([[1, -2], [3, 4]], "Negative values"), ([[np.nan] * 2] * 2, "no count at all"),
     ([[0, 0], [0, np.nan]], "every count in X is 0"), ([[np.inf, 1], [1, 1]], "infinity")],
)  # fmt: skip
def test_what_cannot_be_counts_is_refused(X, words):
    with pytest.raises(ValueError, match=words):
        SiteMonthImputer().fit(np.array(X, dtype=float))


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


def test_bad_frames_are_named():
    t = pd.DataFrame({"site": ["a", "b"], "month": ["2024-05", "2024-13"], "count": [1, 2]})
    with pytest.raises(InputError, match="row 1: '2024-13' is no date"):
        from_dataframe(t)
    with pytest.raises(InputError, match="no column 'plot'"):
        from_dataframe(t, site="plot")
    with pytest.raises(InputError, match="row 1: the count is -2"):
        from_dataframe(t.assign(count=[1, -2]))
