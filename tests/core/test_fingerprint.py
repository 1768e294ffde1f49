"""A checkpoint is resumed by the same run only: each thing that decides the result is in the fingerprint."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fedmiss.compressors import Dithering
from fedmiss.core import Bernoulli, Decreasing, FedEM, FixedSize, Given, Minibatch, Piecewise, Roster, run
from fedmiss.core.fingerprint import describe, identity
from fedmiss.core.loop import load_checkpoint
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError
from fedmiss.models.gmm import GMM
from tests.core.toys import Linear, linear_data, mixture


class Shifted(Linear):
    def __init__(self, shift):
        super().__init__()
        self.shift = shift


def schedule(slope):
    return lambda k: 0.1 / (1 + slope * k)


PROBS = np.full(5, 0.5)
OTHERS = {
    "participation": {"participation": Bernoulli(0.3)},
    "participation of one worker": {"participation": Bernoulli(PROBS + 0.1 * np.eye(5)[3])},
    "kind of participation": {"participation": FixedSize(2)},
    "given participation": {"participation": Given([[0, 1]], p=0.5)},
    "schedule": {"gamma": Decreasing(0.5, power=1)},
    "kind of schedule": {"gamma": Piecewise((0, 5), (0.1, 0.05))}, "function": {"gamma": schedule(2.0)},
    "model": {"model": Shifted(2.0)}, "names": {"roster": Roster.of({name: 8 for name in "abcde"})},
    "weights": {"roster": Roster.of([8] * 5, "pooled")}, "oracle": {"oracle": Minibatch(3, replace=False)},
    "compressor": {"compressor": Dithering(2)}, "alpha": {"alpha": 0.31}, "seed": {"seed": 2},
    "bound": {"bound": 50.0},
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_checkpoint_of_other_settings_is_refused_and_the_setting_named(name, tmp_path):
    data = linear_data()
    settings = (0.3, Bernoulli(PROBS), Minibatch(3), 1)
    algo = FedEM(Shifted(1.0), Dithering(), Roster.of([8] * 5), Decreasing(0.01), *settings)
    if name == "function":
        algo = replace(algo, gamma=schedule(1.0))
    if name == "given participation":
        algo = replace(algo, participation=Given([[0, 2]], p=0.5))
    file, first = tmp_path / "state.npz", {"S_0": "[0.0, 0.0, 0.0]", "init": "'h'"}
    run(algo, LocalEngine(data), np.zeros(3), stop=3, checkpoint=file)
    load_checkpoint(file, replace(algo), LocalEngine(data), first)
    other = replace(algo, **OTHERS[name])
    assert identity(other) != identity(algo)
    with pytest.raises(ConfigError, match=r"there, .* here") as caught:
        load_checkpoint(file, other, LocalEngine(data), first)
    assert next(iter(OTHERS[name])).replace("roster", "") in str(caught.value)


def test_a_checkpoint_of_another_start_or_of_other_data_is_refused(tmp_path):
    """It went on from where the other run stood, without a word."""
    algo, data, file = (
        FedEM(Linear(), Dithering(), Roster.of([8] * 5), 0.1),
        linear_data(),
        tmp_path / "s.npz",
    )
    run(algo, LocalEngine(data), np.zeros(3), stop=3, checkpoint=file)
    for name, start, init in (
        ("S_0", np.ones(3), "h"),
        ("init", np.zeros(3), "zero"),
        ("init", np.zeros(3), np.ones((5, 3))),
    ):
        with pytest.raises(ConfigError, match=f"other settings .{name}: .* there, .* here"):
            run(algo, LocalEngine(data), start, init=init, stop=5, checkpoint=file)
    with pytest.raises(ConfigError, match=r"s\.npz.*is of a run on other data"):  # of the same sizes
        run(algo, LocalEngine(data + 1.0), np.zeros(3), stop=5, checkpoint=file)
    assert run(algo, LocalEngine(data), [0, 0, 0], stop=5, checkpoint=file).server.k == 5


def test_the_parameters_of_a_model_are_in_it():
    YY = np.eye(12)
    texts = {
        describe(GMM(2, 2, "known", Sigma=np.eye(2))), describe(GMM(2, 2, "known", Sigma=2 * np.eye(2))),
        describe(GMM(3, 2, "known", Sigma=np.eye(2))), describe(GMM(2, 12, "tied", YY=YY)),
        describe(GMM(2, 12, "tied", YY=YY + 1e-13 * np.eye(12)[0])),
    }  # fmt: skip
    assert len(texts) == 5


def test_large_arrays_are_not_abbreviated():
    p = np.full(5000, 0.5)
    q = p.copy()
    q[2500] = 0.4  # numpy's repr hides it
    assert repr(Bernoulli(p)) == repr(Bernoulli(q))
    assert describe(Bernoulli(p)) != describe(Bernoulli(q))


@pytest.mark.slow
def test_it_is_the_same_in_another_process():
    code = (
        "from tests.core.test_fingerprint import *\n"
        "model, data, roster, S = mixture()\n"
        "print(identity(FedEM(model, Dithering(), roster, schedule(1.0), 0.3, Bernoulli(PROBS))))"
    )
    model, _, roster, _ = mixture()
    mine = identity(FedEM(model, Dithering(), roster, schedule(1.0), 0.3, Bernoulli(PROBS)))
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == str(mine)
