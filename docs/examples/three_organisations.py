"""A model of one's own in three organisations: the counts of all of them, as a mixture of Poisson distributions.

Every organisation installs this file (here: PYTHONPATH names its folder), and says which numbers are its data. study.toml:

    name = "flocks"
    organisations = ["north", "central", "south"]
    [method]
    run = "three_organisations:job"
    components = 2
"""

import numpy as np
from poisson_mixture import PoissonMixture

from fedmiss.compressors import Identity
from fedmiss.core import FedEM, Stop, run
from fedmiss.engines import StudyEngine


def job(circle, data, components=2, rounds=500):
    counts = np.loadtxt(data, ndmin=1)
    roster = StudyEngine.roster(circle, counts.size, weighting="pooled")
    model = PoissonMixture(components)
    total = circle.add_up([], np.array([counts.sum(), counts.size]))  # all that is needed for a start
    rates = total[0] / total[1] * np.linspace(0.5, 1.5, components)
    pi = np.full(components, 1 / components)
    start = np.concatenate([pi, pi * rates])
    algo = FedEM(model, Identity(), roster, gamma=1.0)
    engine = StudyEngine(circle, counts, masked=True)
    result = run(algo, engine, start, stop=Stop(rounds=rounds, tol=1e-18, window=5))
    share, rates = result.theta
    return {"share": share, "rates": rates, "rounds": result.server.k, "counts": int(total[1])}
