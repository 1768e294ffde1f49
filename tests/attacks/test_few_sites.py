"""Counts of a community: every site tells of every species, so of few sites the rounds of a fit tell all of them."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.community.model import plain_model
from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.group.answers import ANSWER
from fedmiss.network.approval import _seen_of_model
from fedmiss.network.study import Study
from tests.attacks import test_counts
from tests.attacks.test_finds import SETTING, agreed
from tests.community.test_study import CLUBS, JOB, split, terms_of, together
from tests.community.worlds import lists_of, world


def test_who_knows_the_levels_of_few_sites_is_told_all_counts_of_a_community(monkeypatch):
    """Eight sites of two others, 30 species, a visit each."""
    J, S = 12, 30
    w = world(1, J=J, S=S, rank=0, most=1)
    w.eta[:] += 1.0
    cells, y, _ = w.cells()
    at, solved = {"owner-1": [], "owner-2": []}, ANSWER[msg.Solve]

    def solve(program, batch, q):
        out = solved(program, batch, q)
        at.get(program.name, []).append(batch.site_mean[0, :, 0].copy())
        return out

    monkeypatch.setitem(ANSWER, msg.Solve, solve)
    ours, tap = agreed(cells)
    ours.fit(plain_model(SETTING))
    known = iter([np.concatenate(both) for both in zip(*at.values(), strict=True)])
    monkeypatch.setattr(test_counts, "levels", lambda E, line, wanted, start: next(known))
    told = (ours.agreement.behind > 0).astype(float)
    theirs = np.vstack([y[1::3], y[2::3]]) * told
    visits = np.broadcast_to(told, theirs.shape)
    A, sums, weight, mean = test_counts.equations(list(zip(tap.asked, tap.told, strict=True)), visits, theirs)
    spread = np.sqrt(mean + 0.5 * mean**2) + 0.2
    scaled = A * spread * weight[:, None]
    found = mean + spread * np.linalg.solve(
        scaled.T @ scaled + np.eye(mean.size), scaled.T @ ((sums - A @ mean) * weight)
    )
    true = theirs[visits > 0]
    assert true.size > 150
    assert (np.rint(mean) == true).mean() < 0.4
    assert (np.rint(found) == true).all()


def test_a_community_stops_where_all_but_one_have_few_sites_for_its_species(tmp_path):
    """Sixteen sites of two, and 36 species."""
    w = world(2, J=24, S=36, rank=0, most=1)
    w.eta[:] += 3.0
    table = lists_of(w, tmp_path / "all.csv")
    terms = terms_of(sorted(table["species"].unique()), rank=0, effort="none")
    with pytest.raises(
        ConfigError, match=r"fewer sites than half the 3\d species, .* list fewer species, or"
    ):
        together(split(table, tmp_path), terms, tmp_path / "job")


@pytest.mark.parametrize(("few", "masks"), [(False, True), (True, True), (False, False)])
def test_a_custodian_reads_whether_a_community_may_have_few_sites(few, masks, tmp_path):
    species = ["Avis a", "Avis b", "Avis c"]
    study = Study(
        "ponds", "", CLUBS, community={"species": species}, few_sites=few, masks=masks
    )  # fmt: skip
    assert study.terms(JOB).few_sites == (few or not masks)
    assert any("ALLOWS FEW SITES" in line for line in _seen_of_model(study, 0)) == few
