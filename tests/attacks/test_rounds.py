"""Rounds of a method under masks: sums of compressed messages, or of rows that all know, would tell what one has."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity, RandK
from fedmiss.core import FedEM, Minibatch, Roster, Stop, run
from fedmiss.core.oracles import draw_rows
from fedmiss.core.rules import Marina
from fedmiss.engines import StudyEngine
from fedmiss.errors import ConfigError
from fedmiss.federation.masks import Masks
from fedmiss.rng import uniforms
from tests.core.toys import Linear, linear_data
from tests.federation.network import Places, together

CLUBS = ("club-0", "club-1", "club-2")
CURIOUS, SEED, ROWS = 0, 3, 8


class Curious(StudyEngine):
    """The first club's copy of the program, which keeps what it receives: sums, less its own part."""

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.heard = []

    def _sum(self, algo, ask, own):
        replies = super()._sum(algo, ask, own)
        self.heard.append((ask.k, ask.S_hat, (replies.Q.sum(axis=0) - own.Q[0])))
        return replies


def job(folder, q: int, quant, rounds: int, **more):
    """Run three clubs with masks: what the first one hears, the algorithm, every club's rows; or what they raised."""
    data = dict(zip(CLUBS, linear_data(n=3, m=ROWS, q=q), strict=True))
    algo = FedEM(Linear(q), quant, Roster.of(dict.fromkeys(CLUBS, ROWS)), gamma=0.5, seed=SEED, **more)
    places, engines = Places(CLUBS, folder, masked=True), {}

    def one(name):
        circle = places.circle(name)
        engines[name] = Curious(circle, data[name], masked=True)
        try:
            return run(algo, engines[name], np.zeros(q), stop=Stop(rounds=rounds), init="zero")
        finally:
            circle.close()

    ends = together({name: (lambda name=name: one(name)) for name in CLUBS})
    return engines[CLUBS[CURIOUS]].heard, algo, data, ends


@pytest.mark.parametrize(
    "more",
    [
        {"quant": RandK(6)},
        {"quant": Dithering(4)},
        {
            "quant": Identity(),
            "memory": Marina(0.3, RandK(6), 1),
            "oracle": Marina(0.3, RandK(6), 1),
            "alpha": 1.0,
        },
    ],
    ids=["rand-k", "dithering", "whole rounds of MARINA"],
)
def test_masked_messages_are_not_compressed(more, tmp_path):
    for error in job(tmp_path, 24, more.pop("quant"), 2, **more)[3].values():
        assert isinstance(error, ConfigError)
        assert "the sum of compressed messages tells single ones" in str(error)


def test_entries_that_one_organisation_alone_keeps_would_be_told(tmp_path, monkeypatch):
    """Of rand-k the kept entries are drawn for each organisation, so that most sums are of one."""
    monkeypatch.setattr(StudyEngine, "_check_whole", staticmethod(lambda algo: None))
    q, quant, sent = 24, RandK(6), {}
    genuine = FedEM.answers

    def spied(algo, V, memory, down, data, slots, at=None):
        D, *rest = genuine(algo, V, memory, down, data, slots, at)
        sent[down.k, int(slots[0])] = D[0]
        return D, *rest

    monkeypatch.setattr(FedEM, "answers", spied)
    monkeypatch.setattr(Masks, "own_seed", lambda masks: SEED)
    heard = job(tmp_path, q, quant, 20)[0]
    found = wanted = 0
    for k, _, others in heard:
        keep = quant._keep(np.zeros((3, q)), uniforms(SEED, "worker", k, range(3), quant.draws(q)))
        kept = [set(row.tolist()) for row in keep]
        for c, other in ((1, 2), (2, 1)):
            alone = sorted(kept[c] - kept[other])
            wanted += len(kept[c])
            found += int(
                np.isclose(others[alone], sent[k, c][alone] * q / quant.k, rtol=1e-6, atol=1e-9).sum()
            )
    assert found > 0.6 * wanted


def differences(heard, algo, batch: int) -> np.ndarray:
    """Rows of the others (2, m, q), each about its organisation's mean, from the sums of their minibatches."""
    V, sums, drawn = np.zeros(algo.model.q), [], []
    for k, S_hat, others in heard:
        # D_c = S_c - S_k - V_c, and V_c learns D_c: what is left are the means of two minibatches, and A theta.
        sums.append(others + 2 * S_hat + V - 2 * algo.model.A @ S_hat)
        V = V + algo.alpha * others
        index = draw_rows(uniforms(SEED, "worker", k, range(3), batch), np.full(3, ROWS), replace=False)
        drawn.append(np.concatenate([np.bincount(index[c], minlength=ROWS) / batch for c in (1, 2)]))
    rows = np.linalg.lstsq(np.array(drawn), np.array(sums), rcond=None)[0].reshape(2, ROWS, -1)
    return rows - rows.mean(axis=1, keepdims=True)


@pytest.mark.parametrize("known", [True, False], ids=["of the study's seed", "of each one's key"])
def test_rows_of_minibatches_that_all_know_would_be_told(known, tmp_path, monkeypatch):
    if known:
        monkeypatch.setattr(Masks, "own_seed", lambda masks: SEED)
    heard, algo, data, _ = job(tmp_path, 3, Identity(), 40, oracle=Minibatch(3, replace=False))
    true = np.stack([data[name] for name in CLUBS[1:]])
    true = true - true.mean(axis=1, keepdims=True)
    error = np.abs(differences(heard, algo, 3) - true).max() / np.abs(true).max()
    assert error < 1e-6 if known else error > 0.5


def test_who_is_asked_again_draws_the_same_rows(tmp_path):
    places = Places(CLUBS, tmp_path, masked=True)
    seeds = [place.own_seed() for place in places.parties.values()]
    assert len(set(seeds)) == 3
    assert seeds == [place.own_seed() for place in Places(CLUBS, tmp_path, masked=True).parties.values()]
