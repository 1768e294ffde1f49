"""Folds, and the choice among candidates by them."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.calls import cross_validate
from fedmiss.federation.group.folds import draw_folds
from fedmiss.federation.hub import crossval
from fedmiss.federation.hub.agree import folds_like_gaps as like_gaps
from fedmiss.federation.hub.job import run_job
from fedmiss.federation.hub.requests import Enough
from fedmiss.federation.link import Link
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.choice import (
    WORSE,
    _above,
    _choose,
    choose,
    default_candidates,
    enough,
    model_name,
)
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import JOB, SETTINGS, Tapped, clubs_of, order
from tests.federation.owners import owned
from tests.models.panels import simulate, split


def folds_of(g, by, folds=5, seed=0, years=None):
    """Folds of a group's visits, sites named by their numbers."""
    month = g.month.astype(np.int64)
    return draw_folds(
        by, folds, seed, name=g.name, site_id=np.arange(200).astype(str).astype(object), site=g.site, month=month,
        year=month // 12 if years is None else years[month], observer=g.observer,
    )  # fmt: skip


def test_folds_are_drawn_inside_groups_and_cover_them():
    panel, _ = simulate(n=500)
    for g in panel.groups:
        for by in ("cell", "visit", "observer", "block"):
            folds = folds_of(g, by)
            assert folds.size == g.count.size
            assert set(folds) <= set(range(5))
        sizes = np.bincount(folds_of(g, "visit"), minlength=5)
        assert sizes.max() - sizes.min() <= 1
        whole = folds_of(g, "observer")
        fold_of_cell = dict(zip(zip(g.site, g.month, strict=True), folds_of(g, "cell"), strict=True))
        for h in panel.groups:  # visits of one cell share a fold, in every group
            folds = folds_of(h, "cell")
            assert all(
                fold_of_cell.get((s, t), k) == k for s, t, k in zip(h.site, h.month, folds, strict=True)
            )
        assert all(np.unique(whole[g.observer == o]).size == 1 for o in np.unique(g.observer))
    with pytest.raises(ConfigError, match="folds by 'moon'"):
        folds_of(panel.groups[0], "moon")


def test_folds_are_even_and_independent_of_each_other():
    """Keyed draws: each fold has its fifth of 20,000 cells, and neighbours in place or time are not alike."""
    site, month = np.divmod(np.arange(20_000), 100)
    g = Group.of("a", site, month, np.ones(20_000))
    folds = folds_of(g, "cell").reshape(200, 100)
    sizes = np.bincount(folds.ravel(), minlength=5)
    assert np.abs(sizes - 4000).max() < 5 * np.sqrt(20_000 * 0.16)
    for same in ((folds[:, 1:] == folds[:, :-1]).mean(), (folds[1:] == folds[:-1]).mean()):
        assert same == pytest.approx(0.2, abs=5 * np.sqrt(0.16 / 19_800))
    other = folds_of(g, "cell", seed=1).reshape(200, 100)
    assert (folds == other).mean() == pytest.approx(0.2, abs=5 * np.sqrt(0.16 / 20_000))


def test_blocks_are_site_years_whatever_the_season():
    month = np.arange(48)
    g = Group.of("a", np.zeros(48, int), month, np.ones(48))
    by_year = folds_of(g, "block", years=month // 6).reshape(8, 6)
    assert np.ptp(by_year, axis=1).max() == 0
    assert np.unique(by_year).size > 1
    yearly = replace(simulate(J=12, L=10, n=200)[0], calendar=(np.ones(10, int), 2000 + np.arange(10)))
    table = cross_validate(yearly, [CountSettings(rank=0)], by="block").table
    assert (table["n"] > 0).all()  # ten columns are ten years, not one block


@pytest.mark.parametrize("by", ["auto", "cell", "block", "visit", "observer"])
def test_a_group_without_counted_visits_has_no_folds(by):
    panel, _ = simulate(n=200)
    empty = GroupPanel.of(panel.J, panel.L, [*panel.groups, Group.of("zz", [], [], [])], panel.calendar)
    settings = [CountSettings(rank=0)]
    with_it, without = (cross_validate(p, settings, by=by, folds=3).table["deviance"] for p in (empty, panel))
    np.testing.assert_allclose(with_it, without, rtol=1e-12)


def folds_like_gaps(panel):
    federation = LocalFederation.of_panel(panel)
    return like_gaps(federation.link, federation.hub)


def test_folds_are_like_the_gaps():
    rng = np.random.default_rng(0)
    site, month = np.divmod(np.arange(20 * 48), 48)

    def panel(keep, groups=3):
        y = np.ones(int(keep.sum()))
        return split(
            20, 48, site[keep], month[keep], y, np.zeros(y.size, int), rng.integers(0, groups, y.size)
        )

    single = rng.random(site.size) < 0.7
    years = (rng.random((20, 4)) < 0.7)[site, month // 12]
    assert folds_like_gaps(panel(single)) == "cell"
    assert folds_like_gaps(panel(years)) == "block"
    assert folds_like_gaps(panel(years & single)) == "block"  # 30 % by years, 21 % by cells
    yearly = replace(panel(years), calendar=(np.ones(48, int), 1960 + np.arange(48)))
    assert folds_like_gaps(yearly) == "cell"  # a cell is a year
    summer = replace(panel(years), calendar=(np.tile([5, 6, 7, 8], 12), 2000 + np.repeat(np.arange(12), 4)))
    # 12 months are more than a year there; a gap of 12 months holds whole years
    assert folds_like_gaps(summer) == "block"
    # few blocks
    assert folds_like_gaps(replace(panel(years), J=20, groups=panel(years & (site < 2)).groups)) == "cell"
    assert folds_like_gaps(panel(np.ones(site.size, bool))) == "cell"  # no gaps at all
    text = cross_validate(panel(years), [CountSettings(rank=0)]).advice
    assert text.endswith("Folds held out whole years of sites.")


def test_small_groups_do_not_all_fill_one_fold():
    lone = [Group.of(f"g{i}", [0, 1], [0, 1], [1.0, 2.0], [0, 1]) for i in range(60)]
    sizes = np.bincount(np.concatenate([folds_of(g, "observer") for g in lone]), minlength=5)
    assert sizes.min() > 10
    block = [folds_of(g, "block") for g in lone[:2]]
    np.testing.assert_array_equal(block[0], block[1])  # a block is held out in every group that visits it


@pytest.mark.parametrize("occupancy", [False, True])
def test_a_rank_has_its_scores_whatever_ranks_are_beside_it(occupancy):
    """Each rank of a fold goes to its end in a copy, at a moment of its own, while the next one begins: to the bit."""
    panel, _ = simulate(J=30, L=48, n=500)
    ranks = [CountSettings(rank=r, dispersion="negbin", occupancy=occupancy) for r in (0, 1)]
    both, alone = (cross_validate(panel, each, folds=3).table for each in (ranks, ranks[:1]))
    scores = both[both["candidate"] == 0].set_index("fold")["deviance"].sort_index()
    np.testing.assert_array_equal(scores, alone.set_index("fold")["deviance"].sort_index())


@pytest.mark.slow
def test_candidates_are_scored_the_same_alone_and_together():
    panel, _ = simulate(n=400)
    mixed = [CountSettings(rank=2), CountSettings(rank=1, dispersion="negbin"), CountSettings(rank=1)]
    together = cross_validate(panel, mixed, folds=3).summary["deviance"]
    for i, c in enumerate(mixed):
        assert cross_validate(panel, [c], folds=3).summary["deviance"][0] == pytest.approx(together[i])
    with pytest.raises(ConfigError, match="no common score"):
        cross_validate(panel, [CountSettings(), CountSettings(family="gaussian", scale="raw")])


@pytest.mark.slow
def test_folds_that_wait_for_the_start_are_scored_as_those_that_come_after_it(tmp_path, monkeypatch):
    """Side by side they wait; where memory holds one path at a time its fit of all visits comes first."""
    clubs = clubs_of(owned(5, n=2500, J=80, L=60, size=2.0, seed=5), tmp_path)
    models = default_candidates(CountSettings(dispersion="negbin"), 2)
    taps, results = [], []
    for numbers in (crossval.NUMBERS, 1):
        monkeypatch.setattr(crossval, "NUMBERS", numbers)
        taps.append(Tapped({name: club.program() for name, club in clubs.items()}))
        results.append(run_job(Link(taps[-1], JOB[:8], SETTINGS), order(models, structure=())))
    assert results[0].agreement.panel.start.directions.shape[1] > 1
    beside, after = (result.choice for result in results)
    assert max(model.rank for model in beside.members) > 0
    tables = [c.table.sort_values(["model", "rank", "fold"], ignore_index=True) for c in (beside, after)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    whole = {(q.batch, len(q.fits)) for q in taps[0].asked if isinstance(q, msg.Product)}
    assert len(whole) == 1, "only the fit of all visits asks for products"


def test_ranks_above_one_that_is_clearly_worse_are_left_out_and_the_others_scored_as_ever(monkeypatch):
    """For every way in which the scores may come in: a rank counts once all folds have it."""
    panel, _ = simulate(J=60, L=36, n=2500, scale=0.8)
    grid = [CountSettings(rank=r) for r in range(5)]
    whole = cross_validate(panel, grid)
    monkeypatch.setattr(crossval, "enough", lambda deviance: len(deviance) == 3)
    known = {}
    cut = LocalFederation.of_panel(panel)
    cut = crossval.cross_validate(cut.link, cut.hub, grid, known=known)
    pd.testing.assert_frame_equal(
        cut.table, whole.table[whole.table["rank"] <= 2].reset_index(drop=True), check_exact=True
    )
    assert max(model.rank for model in known) == 2, "the fit of all visits beside the folds ends with them"
    assert "Of the quasi-Poisson ranks above 2 were left out" in cut.advice
    assert "left out" not in whole.advice


@pytest.mark.parametrize(("last", "said"), [(1.0 + 0.9 * WORSE, False), (1.0 + 1.1 * WORSE, True)])
def test_a_rank_that_predicts_worse_than_the_best_by_a_tenth_is_the_last(last, said):
    best = np.random.default_rng().uniform(1.0, 9.0)
    assert enough([1.2 * best, best, last * best]) == said
    assert not enough([best])
    assert not enough([2.0 * best, best]), "the last is the best"


def test_folds_weigh_by_their_visits_where_ranks_end_as_on_the_page():
    """Three folds, the smallest of which decides the plain mean."""
    climb = crossval._Climb(3, [0, 1])
    for fold, (visits, *deviance) in enumerate([(900, 1.0, 1.0), (900, 1.0, 1.0), (30, 1.0, 3.0)]):
        for rank, one in enumerate(deviance):
            climb.note(rank, fold, visits * one, visits)
    assert climb.most == np.inf
    climb.note(1, 2, 30 * 9.0, 30)
    assert climb.most == 1
    with pytest.raises(Enough):
        climb.check(2)


def test_a_choice_without_some_candidates_is_that_among_the_others():
    rng = np.random.default_rng(3)
    models = default_candidates(CountSettings(dispersion="negbin"))
    rows = [(model_name(m), m.rank, rng.uniform(1.0, 9.0, 5)) for m in models]
    table = judged(*rows)[0].assign(n=10, log_rmse=0.5, total_bias=1.0)
    there = [i for i, model in enumerate(models) if model.rank < 3]
    part = choose(table[table["candidate"].isin(there)], models, by="cell")
    alone = choose(
        judged(*(rows[i] for i in there))[0].assign(n=10, log_rmse=0.5, total_bias=1.0),
        [models[i] for i in there], by="cell",
    )  # fmt: skip
    assert part.members == alone.members
    assert "Of the negative binomial ranks above 2 were left out" in part.advice
    assert part.advice.count("left out") == 1, "rivals have no ranks above 2"
    assert sorted(set(part.table["candidate"])) == there


def test_cross_validation_finds_the_rank():
    flat, _ = simulate(J=60, L=36, n=2500, scale=0.0)
    rich, _ = simulate(J=60, L=36, n=2500, scale=0.8)
    candidates = [CountSettings(rank=r) for r in (0, 1, 2)]
    none = cross_validate(flat, candidates, by="visit").summary["deviance"]
    # nothing to gain, and nothing lost: the factors switch themselves off
    assert none.max() < 1.01 * none.min()
    chosen = cross_validate(rich, candidates)
    assert chosen.best.rank == 2
    assert len(chosen.table) == 15
    assert chosen.table["n"].sum() == 3 * rich.m
    assert "rank 2" in chosen.advice


def judged(*models):
    """Scores of candidates (model, rank, deviances of the folds), and their summary."""
    table = pd.DataFrame(
        [
            {"candidate": i, "fold": k, "model": m, "rank": r, "penalty": np.nan, "deviance": d}
            for i, (m, r, ds) in enumerate(models)
            for k, d in enumerate(ds)
        ]
    )
    return table, table.groupby("candidate").agg(deviance=("deviance", "mean"), model=("model", "first"))


def test_another_distribution_has_to_be_clearly_better():
    table, summary = judged(
        ("negative binomial", 0, [10.0, 12.0, 11.0]),
        ("negative binomial", 1, [9.0, 11.0, 10.5]),
        ("quasi-Poisson", 0, [4.0, 11.5, 11.0]),  # lowest on average, thanks to one fold
    )
    options = [CountSettings(rank=r, dispersion=d) for d, r in (("negbin", 0), ("negbin", 1), ("quasi", 0))]
    assert _choose(table, summary, options, False) == 1
    table.loc[table["candidate"] == 2, "deviance"] = [8.0, 10.1, 9.4]  # lower in every fold
    summary["deviance"] = table.groupby("candidate")["deviance"].mean()
    assert _choose(table, summary, options, False) == 2


def test_of_ranks_that_are_one_fit_the_lowest_is_chosen():
    options = [CountSettings(rank=r, dispersion="negbin") for r in (0, 1, 2)]

    def chosen(*deviances):
        return _choose(
            *judged(*(("negative binomial", i, ds) for i, ds in enumerate(deviances))), options, False
        )

    first = [10.0, 12.0, 11.0]
    assert chosen([d * 1.01 for d in first], first, [d * 0.9995 for d in first]) == 1
    assert chosen([d * 1.0005 for d in first], first, [d * 0.9999 for d in first]) == 0
    # better by a little in every fold, and by more than that in one
    assert chosen([10.0, 12.0, 11.1], first, [d * 1.2 for d in first]) == 1


def test_default_candidates_include_rank_zero_and_rival_models():
    names = {(c.family, c.dispersion, c.scale, c.rank) for c in default_candidates(CountSettings())}
    assert ("poisson", "quasi", "raw", 0) in names
    assert ("poisson", "negbin", "raw", 2) in names
    assert ("gaussian", "quasi", "log1p", 2) in names
    assert model_name(default_candidates(CountSettings())[0]) == "negative binomial"  # the one to beat


@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_no_candidate_has_a_rank_above_the_largest_asked_for(most):
    tried = [(c.family, c.dispersion, c.scale, c.rank) for c in default_candidates(CountSettings(), most)]
    assert max(rank for *_, rank in tried) == most
    assert len(set(tried)) == len(tried)


def test_a_fold_without_a_visit_has_no_score():
    """Of four cells one of five folds holds out none; the others score all candidates."""
    site, month = (x.ravel() for x in np.meshgrid(np.arange(4), [0]))
    panel = GroupPanel.of(
        8, 1, [Group.of("g", site, month, np.arange(4.0))], (np.array([5]), np.array([2012]))
    )
    candidates = [CountSettings(rank=0), CountSettings(rank=0, dispersion="negbin")]
    choice = cross_validate(panel, candidates, folds=5, seed=0)
    assert choice.table["n"].sum() == 2 * 4
    assert (choice.table.groupby("candidate")["fold"].nunique() < 5).all()
    assert np.isfinite(choice.table["deviance"]).all()


def test_candidates_are_compared_within_folds_by_mean_and_its_error():
    table, _ = judged(("a", 0, [10.0, 40.0, 11.0]), ("a", 1, [10.5, 40.5, 14.0]))
    mean, error = _above(table.pivot(index="fold", columns="candidate", values="deviance"), 0)
    np.testing.assert_allclose(mean, [0.0, 4.0 / 3.0])
    np.testing.assert_allclose(error, [0.0, np.std([0.5, 0.5, 3.0], ddof=1) / np.sqrt(3)])
