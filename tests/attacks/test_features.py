"""Rounds tell sums of products of the sites' features, each with other weights: of too few sites they tell single ones."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.group import agreement, features
from fedmiss.federation.hub import features as agreed
from fedmiss.federation.triangle import from_triangle
from fedmiss.models.lowrank.data import GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES, TOLD
from tests.federation.network import Tapped, tapped
from tests.federation.owners import dealt

L = 24
NUMBERS = ("elevation", "forest", "water")
DIGITS = 2.0**24  # of the field under masks


def panel_of(J: int, sites: dict[str, np.ndarray], region: np.ndarray | None = None) -> GroupPanel:
    """Counts of three organisations, in turn at the sites."""
    rng = np.random.default_rng(1)
    level = 1 + 0.8 * rng.normal(size=(J, 1)) + 0.3 * np.sin(2 * np.pi * np.arange(L) / 12)
    seen = rng.random((J, L)) < 0.7
    site, month = np.nonzero(seen)
    y = rng.poisson(np.exp(level) * rng.gamma(3, 1 / 3, (J, L)))[seen].astype(float)
    return dealt((J, L), site, month, y, observer=site // 3, region=region, covariates=sites)


def job_of(panel: GroupPanel, folder, *blocks: str, structure=None, bootstrap=0) -> Tapped:
    model = CountSettings(rank=0, features=blocks, slopes=False)
    models = [model, CountSettings(rank=1, slopes=False)] if structure else [model]
    more = {"folds": 2, "by": "cell", "bootstrap": bootstrap, "structure": structure}
    return tapped(panel, folder, models, least=5, **more)[0]


def spanned(tap: Tapped) -> tuple[msg.Features, np.ndarray, np.ndarray]:
    """The features agreed on, their means, and what the others' sums of products span, as rows; to the digits of masks."""
    question = [q for q in tap.asked if isinstance(q, msg.Features) and q.kept.size][-1]
    centre = next(q.centre for q in tap.asked if isinstance(q, msg.Open))
    k, slices = int(question.kept.sum()), []
    for _, answers in tap.of(msg.Solve):
        for row in sum(np.rint(a.features * DIGITS) for a in answers[1:]):
            slices.append(from_triangle(row[k + 1 :] / DIGITS, k + 1))
    _, size, rows = np.linalg.svd(np.stack(slices).reshape(len(slices), -1), full_matrices=False)
    return question, centre, rows[size > 1e-8 * size[0]]


def lacking(F: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Share of each site's products (n, k) that is outside of what the sums span."""
    P = (F[:, :, None] * F[:, None, :]).reshape(len(F), -1)
    P /= np.linalg.norm(P, axis=1, keepdims=True)
    return ((P - P @ rows.T @ rows) ** 2).sum(axis=1)


def told(tap: Tapped, sites: dict[str, np.ndarray]) -> float:
    """How much better the others' sites fit the sums than numbers of no site: the ratio of what the middle one lacks."""
    question, centre, rows = spanned(tap)
    values = np.stack([sites[name] for name in question.names], axis=1)
    z = (values - question.mean) / question.deviation
    z, made_up = z[np.arange(len(z)) % 3 != 0], np.random.default_rng(0).normal(size=(200, z.shape[1]))
    out = []
    for one in (z, made_up):
        x = np.clip(one, -2.5, 2.5)
        both = np.stack([x, (x**2 - 1) / np.sqrt(2)], axis=-1).reshape(len(x), -1)
        F = both[:, question.kept == 1] - centre
        out.append(np.median(lacking(np.column_stack([F, np.ones(len(F))]), rows)))
    return out[1] / out[0]


def test_covariates_of_single_sites_are_hidden_by_as_many_others_as_there_are_products(tmp_path, monkeypatch):
    """Three numbers have 28 products with a constant, two have 15; the others have 24 sites."""
    sites = dict(zip(NUMBERS, np.random.default_rng(5).normal(size=(3, 36)), strict=True))
    tap = job_of(panel_of(36, sites), tmp_path / "rule", "covariates", bootstrap=40)
    assert [q.kept.sum() for q in tap.asked if isinstance(q, msg.Features) and q.kept.size][-1] == 4
    assert told(tap, sites) < 100
    monkeypatch.setattr(features, "_too_many", lambda kinds, blocks, others: np.zeros(blocks.size, bool))
    assert told(job_of(panel_of(36, sites), tmp_path / "none", "covariates", bootstrap=40), sites) > 1e6


def test_with_numbers_a_region_has_as_many_sites_of_the_others_as_sums(tmp_path):
    """Three numbers, their squares and a constant are seven sums of a region; in the north the others have five sites."""
    region = np.repeat(np.array(["north", "south", "west"], dtype=object), (8, 32, 20))
    sites = dict(zip(NUMBERS, np.random.default_rng(5).normal(size=(3, 60)), strict=True))
    kept = []
    for blocks in (("regions",), ("regions", "covariates")):
        tap = job_of(panel_of(60, sites, region), tmp_path / str(len(blocks)), *blocks)
        question = [q for q in tap.asked if isinstance(q, msg.Features) and q.kept.size][-1]
        kept.append(question.kept.tolist())
    assert kept[0][0] == 1
    assert kept[1][:7] == [1] * 6 + [0]


@pytest.mark.parametrize(
    ("rest", "kept"), [(0, [1, 1, 1, 1]), (2, [1, 1, 0, 1]), (1, [1, 1, 0, 1]), (3, [1, 1, 1, 1])]
)
def test_what_is_left_of_a_category_has_as_many_sites_of_the_others_as_sums_too(rest, kept):
    """A number, its square and a constant are three sums of it: else the rarest value joins it."""
    others = np.array([30.0, 30.0, 5.0, 25.0 - rest, 30.0])
    out = features._too_many(["", "", "habitat: ", "habitat: "], np.array(["covariates"] * 4), others)
    assert (~out).astype(int).tolist() == kept


@pytest.mark.parametrize(("theirs", "asked"), [(4, False), (19, False), (20, True)])
def test_a_covariate_has_enough_sites_without_any_organisation(tmp_path, theirs, asked):
    """Of two sites of the others the sum and the sum of squares are their values; for 19 see ``test_whole_numbers``."""
    sites = np.arange(45)
    known = np.isin(sites, [*sites[sites % 3 == 0][:10], *sites[sites % 3 > 0][:theirs]])
    heights = np.where(known, np.random.default_rng(5).normal(size=45), np.nan)
    plain = np.random.default_rng(6).normal(size=45)
    tap = job_of(panel_of(45, {"height": heights, "plain": plain}), tmp_path, "covariates")
    told = [q for q in tap.asked if isinstance(q, msg.Covariates) and q.unit.size]
    assert [("height" in q.names, "plain" in q.names) for q in told] == [(asked, True)]
    kept = [q for q in tap.asked if isinstance(q, msg.Features) and q.kept.size][-1]
    assert kept.kept.sum() == (4 if asked else 2)


def test_beside_another_number_nine_sums_are_of_the_sites_that_have_it():
    kept = ~features._too_many([""] * 4, np.array(["covariates"] * 4), np.array([30.0, 30.0, 8.0, 8.0, 30.0]))
    assert kept.tolist() == [True, True, False, False]


@pytest.mark.parametrize(("marshes", "kept"), [((1, 2), False), ((0, 3, 6, 1, 2), True)])
def test_a_habitat_and_a_region_with_few_sites_together_have_no_sums_of_their_own(tmp_path, marshes, kept):
    """The curvature of one site's marsh in the north told the birds expected there: 102.6 of 105 counted."""
    region = np.where(np.arange(60) < 30, "north", "south").astype(object)
    marsh = np.isin(np.arange(60), [*marshes, *range(30, 42)]).astype(float)
    panel = panel_of(60, {"habitat: marsh": marsh}, region)
    tap = job_of(panel, tmp_path, "covariates", "regions")
    asked = [(q, a) for q, a in tap.of(msg.Features) if q.kept.size]
    assert asked[-1][0].kept[0] == kept
    for q, a in asked:
        if a[0].products.size:
            G = from_triangle(sum(one.products for one in a), int(q.kept.sum()))
            assert ((G == 0) | (np.rint(G) >= 5)).all()


def test_places_take_no_part_between_organisations(tmp_path, monkeypatch):
    """Of 40 sites of two others the sums of the smooth tell where each lies; so nobody is asked for them."""
    rng = np.random.default_rng(5)
    sites = {"longitude": 10 + rng.normal(size=60), "latitude": 50 + 0.7 * rng.normal(size=60)}
    panel = panel_of(60, sites)
    tap = job_of(panel, tmp_path / "auto", structure=FEATURES)
    asked = [q for q in tap.asked if isinstance(q, msg.Features | msg.Covariates)]
    assert {block for q in asked if isinstance(q, msg.Features) for block in q.blocks} <= set(TOLD)
    assert not {*sites} & {name for q in asked for name in q.names}
    with pytest.raises(ConfigError, match="where a site lies is not told"):
        job_of(panel, tmp_path / "named", "smooth")
    for module, name, value in (
        (agreed, "TOLD", FEATURES), (agreement, "PLACE", ()), (features, "UNTOLD", {}),
        (features, "_too_many", lambda kinds, blocks, others: np.zeros(blocks.size, bool)),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    question, centre, rows = spanned(job_of(panel, tmp_path / "none", "smooth", bootstrap=40))
    knots = question.knots[question.kept == 1]
    values, vectors = np.linalg.eigh(features._near(knots, knots))
    root = vectors @ np.diag(1.0 / np.sqrt(np.maximum(values, 1e-6))) @ vectors.T
    x = np.stack([sites[name] for name in question.names], axis=1)
    at = [question.names.index(name) for name in ("longitude", "latitude")]
    z = ((x - question.mean) / question.deviation)[:, at]
    near = [0.05 * rng.normal(size=z.shape) + z, z]
    F = [features._near(one[np.arange(60) % 3 != 0], knots) @ root - centre for one in near]
    wrong, right = (lacking(np.column_stack([f, np.ones(len(f))]), rows) for f in F)
    assert np.median(wrong) > 1e6 * np.median(right)
