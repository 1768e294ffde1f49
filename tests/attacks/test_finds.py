"""Pairs of rare species that were found together: products of a community's residuals would tell them to a member."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.community import study
from fedmiss.community.model import Cells, fit_by
from fedmiss.community.settings import CommunitySettings
from fedmiss.community.study import Terms, _Ours
from fedmiss.federation import messages as msg
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.hub.state import Start
from fedmiss.federation.link import Link
from tests.attacks.test_products import gram
from tests.community.worlds import world
from tests.federation.network import JOB, SETTINGS
from tests.federation.test_least_numbers import Tapped

J, S, LEAST = 90, 16, 5
OTHERS = np.arange(J) % 3 != 0  # sites that are not the member's
SETTING = CommunitySettings(rank=1)
TERMS = Terms(SETTING, (), LEAST, 0.85, 3, False, JOB, SETTINGS)


def seldom(seed: int) -> tuple[Cells, np.ndarray]:
    """Cells of two visits to every site, half of the species common and half rare; the counts (J, S)."""
    w = world(seed, J=J, S=S)
    w.eta[:, S // 2 :] = -2.6 + 0.3 * w.rng.normal(size=(J, 1))
    w.visits[:] = 2
    cells, y, _ = w.cells()
    return cells, y


def agreed(cells: Cells) -> tuple[_Ours, Tapped]:
    """The member's end of the community, once months, which are the species, are agreed on; every third site is its own."""
    programs = {}
    for k in range(3):
        mine = cells.take(cells.site % 3 == k)
        mine = replace(mine, J=cells.J // 3, site=mine.site // 3)
        programs[f"owner-{k}"] = GroupProgram(
            f"owner-{k}", mine.visits(np.arange(k, cells.J, 3).astype(str), {}), secret=f"owner-{k}".encode(),
            settings=SETTINGS, jointly=True, minimum=LEAST, finds=True,
        )  # fmt: skip
    tap = Tapped(programs)
    return _Ours(programs["owner-0"], Link(tap, JOB[:8], SETTINGS), TERMS.plan(np.arange(cells.S))), tap


def told(cells: Cells) -> list[tuple[msg.Product, np.ndarray]]:
    """Products that the job asks for, and of each the sum of the two others."""
    ours, tap = agreed(cells)
    study.begin_axes(ours, TERMS)
    fit_by(ours, cells.take(cells.site % 3 == 0), SETTING, {})
    return [(q, q.unit[:, None, None] * sum(a.product for a in told[1:])) for q, told in tap.of(msg.Product)]


def of_the_fit(products: list) -> np.ndarray:
    """R'R (S, S) of the two others in the final fit, as a member finds it; zero for pairs that do not travel."""
    # of the rule the only one is of another batch
    asked = [(q, sums) for q, sums in products if q.batch == 0]
    pairs = asked[0][0].pairs
    return gram([(q.V[0], sums[0]) for q, sums in asked], pairs == 1 if pairs.size else np.ones((S, S), bool))


@pytest.mark.slow
def test_products_of_a_community_would_tell_which_rare_species_were_found_together(monkeypatch):
    """To a member that knows nothing but its own records: four pairs of five, at sites that two others visited."""
    right = []
    for seed in (3, 4, 5, 6):
        cells, y = seldom(seed)
        products = told(cells)
        found = (y > 0).astype(int)
        both = found.T @ found
        clubs = sum((found[k::3].T @ found[k::3] >= 2).astype(int) for k in range(3))
        for q, _ in products:
            travels = (q.pairs == 1) & ~np.eye(S, dtype=bool)
            assert travels.any()
            assert (both[travels] >= LEAST).all()
            assert (clubs[travels] == 3).all()
        with monkeypatch.context() as without:
            without.setattr(study, "begin_axes", lambda ours, terms: [])
            without.setattr(Start, "tell", lambda start, found: None)
            G = of_the_fit(told(cells))
        total, theirs = y[OTHERS].sum(axis=0), found[OTHERS]
        s, t = np.tril_indices(S, -1)
        chance = (
            np.outer(total, total)[s, t] / OTHERS.sum()
        )  # product where none were found together: its negative
        rare = (np.minimum(total[s], total[t]) > 0) & (
            np.outer(*2 * [theirs.sum(axis=0)])[s, t] < 1.5 * OTHERS.sum()
        )
        together = (theirs.T @ theirs)[s, t] > 0
        right += ((G[s, t] > -0.5 * chance) == together)[rare].tolist()
    assert len(right) >= 60
    assert np.mean(right) > 0.8


def test_organisations_with_few_sites_fit_no_axis_and_say_why():
    """Of no more sites than columns of products all residuals would follow."""
    cells, _ = seldom(3)
    ours, tap = agreed(replace(cells.take(cells.site < 27), J=27))
    (said,) = study.begin_axes(ours, TERMS)
    assert said.startswith(
        "no axes are fitted: without one of them, the organisations have 18 sites or fewer"
    )
    assert not ours.hub.patterns
    assert not any(isinstance(q, msg.Pairs) for q in tap.asked)
