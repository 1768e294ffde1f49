"""Draws of replicates that everybody could make for an id would tell whose the site is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.keys import keyed_hashes, normals, seed_key
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import tapped
from tests.federation.owners import dealt

J, L, REPLICATES = 60, 36, 200


def found(folder, seed: int) -> float:
    """Share of the others' sites that a member finds among ten times as many guessed ids; by chance 0.08."""
    rng = np.random.default_rng(seed)
    level = 1 + 0.9 * rng.normal(size=(J, 1)) + 0.3 * np.sin(2 * np.pi * np.arange(L) / 12)
    site, month = np.nonzero(rng.random((J, L)) < 0.15)
    y = rng.poisson(np.exp(level[site, month]) * rng.gamma(3, 1 / 3, site.size)).astype(float)
    ids = np.array([f"L{10000 + 7 * j}" for j in range(J)], dtype=object)
    panel = dealt((J, L), site, month, y, observer=rng.integers(0, 12, site.size))
    model = CountSettings(rank=0, slopes=False)
    tap, programs, _ = tapped(replace(panel, site_id=ids), folder, [model], bootstrap=REPLICATES)
    opened, sums, numbers = {q.batch: q for q, _ in tap.of(msg.Open)}, [], []
    for q, answers in tap.of(msg.Totals):
        if q.drawn:
            month_of = np.exp(q.mu[:, None] + q.T[:, :, 0]) * q.smear[:, None]
            sums.append(np.log((sum(a.totals[:, 0] for a in answers[1:]) / month_of).mean(axis=1)))
            numbers.append(opened[q.batch].numbers[q.fits])
    total, drawn, key = np.concatenate(sums), np.concatenate(numbers), opened[q.batch].seed
    own, theirs = (
        {place for name in names for place in programs[name].visits.site_id}
        for names in (("owner-0",), ("owner-1", "owner-2"))
    )
    guesses = np.array([g for j in range(7 * J) if (g := f"L{10000 + j}") not in own], dtype=object)
    place = keyed_hashes(guesses, seed_key("prior noise", programs["owner-1"].visits.species, key))
    z = np.stack([normals(place, 1, "sites", key, int(n))[:, 0] for n in drawn])
    alike = (z - z.mean(axis=0)).T @ (total - total.mean()) / z.std(axis=0)
    best = guesses[np.argsort(-alike)[: len(theirs)]]
    return float(np.isin(best, sorted(theirs)).mean())


@pytest.mark.slow
def test_draws_of_sites_follow_from_a_secret_between_organisations(tmp_path, monkeypatch):
    def share(key):
        return np.mean([found(tmp_path / f"{key}{seed}", seed) for seed in range(3)])

    assert share("secret") < 0.2
    monkeypatch.setattr(GroupProgram, "key", lambda program, *words: seed_key(*words))
    assert share("public") > 0.2
