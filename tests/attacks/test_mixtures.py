"""What the page on privacy gives up: rounds of a mixture under masks tell how many of the others' counts have each value.

What a row adds to the sums follows from its value and the parameters that all know: a round's sums are linear in the numbers
of rows of each value, which are whole. So many rows are no help where they have few different values, as counts do.
"""

import numpy as np

from fedmiss.compressors import Identity
from fedmiss.core import FedEM, Stop, run
from fedmiss.engines import StudyEngine
from tests.attacks.test_rounds import CLUBS, CURIOUS, Curious
from tests.attacks.test_small_studies import DIGITS, numbers_of
from tests.core.toys import example
from tests.federation.network import Places, together

ROWS = 200
ROUNDING = 2.0**-29  # of the sums over all rows: 600 times that of a masked mean


def test_rounds_of_a_masked_mixture_tell_how_many_counts_of_the_others_have_each_value(tmp_path):
    """The job of ``docs/examples/three_organisations.py``, from its start: all 400 counts of two others, sorted."""
    model, rows, _ = example("poisson_mixture", n=len(CLUBS), m=ROWS)
    data, places, engines = dict(zip(CLUBS, rows, strict=True)), Places(CLUBS, tmp_path, masked=True), {}
    all_rows = np.concatenate(rows)
    start = np.concatenate([[0.5, 0.5], 0.5 * all_rows.mean() * np.array([0.5, 1.5])])

    def one(name):
        circle = places.circle(name)
        roster = StudyEngine.roster(circle, ROWS, weighting="pooled")
        engines[name] = Curious(circle, data[name], masked=True)
        try:
            algo = FedEM(model, Identity(), roster, gamma=1.0)
            return run(algo, engines[name], start, stop=Stop(rounds=500, tol=1e-18, window=5), init="zero")
        finally:
            circle.close()

    together({name: (lambda name=name: one(name)) for name in CLUBS})
    others = np.concatenate([data[name] for i, name in enumerate(CLUBS) if i != CURIOUS])
    values = np.arange(others.max() + 1)
    V, alone, told = np.zeros(model.q), [], []
    for _, S_hat, heard in engines[CLUBS[CURIOUS]].heard:
        # D_c = S_c - S_k - V_c, and V_c, from 0, learns D_c: what is left are the others' statistics
        told.append((heard + 2 * S_hat + V) * ROWS)
        V = V + heard
        alone.append([model.s_bar(model.T(S_hat), np.array([value])) for value in values])
    scale = 1.0 / (ROUNDING * DIGITS)
    found = numbers_of(
        np.concatenate(alone, axis=1) * scale, values[:, None], np.concatenate(told) * scale, 0
    )
    assert found is not None
    np.testing.assert_array_equal(np.repeat(values, found.astype(int)), np.sort(others))
