"""Scores of held-out visits: deviance, squared log error, predicted and counted total, each a sum over a fold's visits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq

from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.group import agreement
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.models.lowrank.families import FAMILIES
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import Tapped, tapped
from tests.federation.owners import dealt

OWN, EACH, L, FOLDS, DIGITS = 30, 8, 3, 5, 2.0**24
MODEL = CountSettings(rank=0, slopes=False, season=False, dispersion="negbin")
POISSON = FAMILIES["poisson"]


def job_of(seed: int, folder) -> tuple[Tapped, dict]:
    """All sites are visited in the first month, ten of them in two more, which are too few for folds."""
    rng, J = np.random.default_rng(seed), OWN + 2 * EACH
    owner = np.r_[np.zeros(OWN, int), 1 + np.arange(2 * EACH) % 2]
    seen = np.zeros((J, L), dtype=bool)
    seen[:, 0] = seen[:6] = seen[OWN : OWN + 4] = True
    site, month = np.nonzero(seen)
    y = rng.poisson(np.exp(1 + 0.8 * rng.normal(size=J))[site] * rng.gamma(3, 1 / 3, site.size)).astype(float)
    panel, models = dealt((J, L), site, month, y, owner[site]), [MODEL, replace(MODEL, dispersion="quasi")]
    return tapped(panel, folder, models, DataSpec(jointly=True, minimum=5), least=5, folds=FOLDS, by="cell")[
        :2
    ]


def pairs_of(deviance: float, error: float, predicted: float, counted: float) -> set[tuple[int, int]]:
    """Pairs of counts with these sums, whatever was expected of each."""
    out, tries = set(), np.geomspace(1e-3, predicted - 1e-3, 1000)

    def lacking(m: float, y: int) -> float:
        two, means = np.array([y, counted - y]), np.array([m, predicted - m])
        return float(POISSON.deviance(two, means).sum()) - deviance

    for y in range(int(counted) + 1):
        off = np.array([lacking(m, y) for m in tries])
        for i in np.flatnonzero(off[:-1] * off[1:] <= 0):
            m = brentq(lacking, tries[i], tries[i + 1], args=(y,), xtol=1e-13)
            errors = POISSON.log_error(np.array([y, counted - y]), np.array([m, predicted - m]))
            if abs((errors**2).sum() - error) < 1e-4:
                out.add(tuple(sorted((y, int(counted) - y))))
    return out


def test_two_counts_follow_from_the_score_of_a_fold_that_holds_out_few_of_the_others(tmp_path, monkeypatch):
    """Of each member, eight visits in five folds."""
    with pytest.raises(ConfigError, match="a fold holds out fewer than 20 visits in all"):
        job_of(0, tmp_path / "rule")
    monkeypatch.setattr(agreement, "VISITS_OF_A_FOLD", 0)
    tap, programs = job_of(0, tmp_path / "none")
    theirs = [programs[name].used for name in ("owner-1", "owner-2")]
    counts = [used.count[used.month == 0] for used in theirs]
    possible = {tuple(sorted((int(a), int(b)))) for a in counts[0] for b in counts[1]}
    found = []
    for _, answers in tap.of(msg.Score):
        for *sums, n in sum(np.rint(a.sums * DIGITS) for a in answers[1:]) / DIGITS:
            if n == 2:
                found.append(pairs_of(*sums))
    assert found
    for pair in found:
        assert len(pair) == 1
        assert pair <= possible
