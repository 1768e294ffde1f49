"""What masks cannot do: months' sums of replicates are secret weights of observers times what each counted by month."""

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.models.lowrank.data import GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from tests.models.panels import truth

from .network import tapped
from .owners import dealt

EACH, L, J = 6, 60, 45  # observers of each organisation, who are out in some months


def clubs() -> GroupPanel:
    rng = np.random.default_rng(1)
    out = rng.random((3 * EACH, L)) < 0.3
    site, month = rng.integers(0, J, 1500), rng.integers(0, L, 1500)
    able = [
        np.flatnonzero(out[EACH * (j % 3) : EACH * (j % 3 + 1), t]) for j, t in zip(site, month, strict=True)
    ]
    keep = np.array([who.size > 0 for who in able])
    who = np.array([rng.choice(one) if one.size else 0 for one in able])
    count = rng.poisson(np.exp(truth(J, L, 1, 0.6) + 1.0)[site, month]).astype(float)
    return dealt((J, L), site[keep], month[keep], count[keep], observer=who[keep])


@pytest.mark.parametrize("dispersion", ["quasi", "negbin"])
def test_who_knows_when_each_observer_was_out_finds_what_it_counted_in_quasi_poisson_replicates(
    dispersion, tmp_path
):
    """Weighted counts are gradient + curvature: their rank is the number of observers, and of the vectors that they span one
    is zero wherever an observer was not out. The negative binomial weighs each visit by the replicate's own fit."""
    model = CountSettings(rank=0, dispersion=dispersion)
    tap, programs, _ = tapped(clubs(), tmp_path, [model], bootstrap=40)
    batches = {q.batch for q, _ in tap.of(msg.Open) if q.weights == "replicate"}
    first = [
        sum(a.months for a in told[:2])  # owner-2 takes its own off
        for q, told in tap.of(msg.Solve)
        if q.batch in batches and q.begin
    ]
    sums = np.concatenate(first).sum(axis=2)
    counted, visits = np.zeros((2, 2 * EACH, L))
    for k in range(2):
        u = programs[f"owner-{k}"].used
        np.add.at(counted, (EACH * k + u.observer, u.month), u.count)
        np.add.at(visits, (EACH * k + u.observer, u.month), 1)
    span, alike = np.linalg.svd(sums, full_matrices=False)[2][: 2 * EACH], []
    for own, there in zip(counted, visits > 0, strict=True):
        elsewhere = span[:, ~there]
        found = np.linalg.eigh(elsewhere @ elsewhere.T)[1][:, 0] @ span
        alike.append(abs(found @ own) / np.linalg.norm(own))
    assert (np.array(alike) > 1.0 - 1e-9).all() == (dispersion == "quasi")
    assert dispersion == "quasi" or max(alike) < 1.0 - 1e-4
