"""Plant each bug of the table in a copy of the source and see which tests die.

The table says which laws guard which line; an equivalence with EM alone would miss half of these bugs.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAWS = "tests/core/test_fedem_laws.py::"
WORKED = LAWS + "test_a_worked_round_of_five_workers_of_which_one_answers"
LINES = LAWS + "test_a_trajectory_follows_algorithm_1_line_by_line"
V_MEAN = LAWS + "test_V_is_the_mean_when_messages_are_lost"
EM = LAWS + "test_one_worker_uncompressed_full_batch_unit_step_is_em_for_any_memory"
SHARDS = LAWS + "test_equal_shards_give_the_pooled_fit_and_pooled_weights_do_for_unequal_ones"
H_LAW = LAWS + "test_H_is_unbiased_over_absences_minibatches_and_quantization"
FIXED = LAWS + "test_a_fixed_point_with_its_memories_does_not_move"
Q_LAW = "tests/compressors/test_laws.py::test_the_law"
NORMS = "tests/compressors/test_laws.py::test_norms_are_rounded_up_so_that_no_entry_is_cut"
SAME = "tests/engines/test_same_run_other_machine.py::test_unequal_workers_give_the_same_bits"
SPIDER = "tests/core/test_finite_sum.py::test_vr_fedem_with_one_worker_is_spider_em"
ABSENT = LAWS + "test_absent_workers_move_from_their_own_last_point"

MESSAGES = "tests/core/test_messages.py::"

FEDEM, RULES = "core/fedem.py", "core/rules.py"
ORACLES, DITHER = "core/oracles.py", "compressors/dither.py"
SERVER = "return V + alpha * mean, V + scaled  # no"  # of FedEM's rule

MUTANTS = {
    "1/p forgotten in H": ({FEDEM: [("weighted_sum(w / p, Q)", "weighted_sum(w, Q)")]}, [WORKED, LINES, H_LAW]),
    "1/|A| instead of 1/(n p)": (
        {FEDEM: [("weighted_sum(w / p, Q)", "weighted_sum(w / w.sum(), Q)")]}, [WORKED, LINES],
    ),
    "server V divided by p": (
        {RULES: [(SERVER, SERVER.replace("mean", "scaled"))]}, [WORKED, V_MEAN],
    ),
    "alpha forgotten on the server": (
        {RULES: [(SERVER, SERVER.replace("alpha * ", ""))]}, [WORKED, V_MEAN, SHARDS],
    ),
    "alpha forgotten on the workers": (
        {FEDEM: [("self.rule.kept(D, Q), self.alpha)", "self.rule.kept(D, Q), 1.0)")]}, [WORKED, V_MEAN, LINES, SHARDS],
    ),
    "V_i left out of Delta": ({RULES: [("        D -= V\n", "")]}, [WORKED, EM, H_LAW, FIXED]),
    "S_hat left out of Delta": ({RULES: [("D: F64 = S - down.S_hat\n", "D: F64 = S.copy()\n")]}, [WORKED, EM, H_LAW, FIXED]),
    "V left out of H": ({RULES: [(SERVER, SERVER.replace("V + scaled", "scaled"))]}, [WORKED, EM, H_LAW]),
    "gamma doubled": (
        {FEDEM: [("server.S_hat + gamma * H", "server.S_hat + 2 * gamma * H")]}, [WORKED, EM, LINES],
    ),
    "deterministic rounding": ({DITHER: [("/ unit + u[i]", "/ unit + 0.5")]}, [Q_LAW, H_LAW]),
    "one shared random stream": (
        {FEDEM: [('"worker", down.k, slots,', '"worker", down.k, [0] * len(slots),')]},
        [LINES],
    ),
    "draws keyed by position, not by worker": (
        {FEDEM: [('"worker", down.k, slots,', '"worker", down.k, range(len(slots)),')]},
        [LINES, SAME],
    ),
    "VR: difference of the same point": ({ORACLES: [("both[: len(move)] - both[len(move) :]", "0.0")]},
                                         [SPIDER, ABSENT]),
    "VR: no full pass at a new outer loop": (
        {ORACLES: [("fresh = last < outer", "fresh = last < 0"), ("if k < outer]:", "if k < 0]:")]},
        [SPIDER],
    ),
    "tied covariance with pi for the masses": (
        {"models/gmm.py": [("Sigma = self.YY - (s1[:, None] * mu)", "Sigma = self.YY - (pi[:, None] * mu)")]},
        ["tests/models/test_gmm.py::test_the_common_covariance_takes_masses_as_they_are"],
    ),
    "gamma* with omega for omega_p": (
        {"core/theory.py": [("5.0 * omega_p(omega, p)) * constants.sigma2", "5.0 * omega) * constants.sigma2")]},
        ["tests/core/test_theory.py::test_gamma_star_at_partial_participation_is_corollary_2_with_theorem_4s_factor"],
    ),
    "bytes down without theta": (
        {FEDEM: [("8 * q + theta_bytes(down.theta)", "8 * q")]},
        [LAWS + "test_bytes_down_are_statistic_parameter_and_header_of_each_that_answered"],
    ),
    "norm rounded to the nearest": (
        {DITHER: [("bits[at] += 1", "pass")]}, [NORMS],
    ),
    "poison let through": (
        {"core/messages.py": [("if not float(np.abs(Q_i).max(initial=0.0)) < _DECODED:", "if False:")]},
        [MESSAGES + "test_poisoned_messages_are_dropped_by_name"],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the package and of these tests, with compiled kernels, in which bugs can be planted."""
    root = tmp_path_factory.mktemp("mutants")
    for folder in ("fedmiss", "data_schema", "tests"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("out", "*.parquet"))
    shutil.copy(ROOT / "pyproject.toml", root)
    result = run_tests(root, [WORKED, LINES, V_MEAN, EM, SHARDS, H_LAW, FIXED, Q_LAW, SAME, SPIDER, ABSENT])
    assert result.returncode == 0, result.stdout[-3000:]
    return root


def run_tests(root, tests):
    options = ["-q", "-p", "no:cacheprovider", "--tb=no", "-m", "not mc"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    env = os.environ | {"PYTHONPATH": str(root)}
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", MUTANTS)
def test_each_planted_bug_kills_the_tests_that_guard_it(name, copy):
    edits, victims = MUTANTS[name]
    saved = {}
    try:
        planted = 0
        for file, pairs in edits.items():
            path = copy / "fedmiss" / file
            saved[path] = text = path.read_text()
            for old, new in pairs:
                planted += text.count(old)
                text = text.replace(old, new)
            path.write_text(text)
        assert planted >= 1, f"the line of {name!r} is not in the source any more; change the table"
        out = run_tests(copy, victims).stdout
        for test in victims:
            assert f"FAILED {test}" in out, f"{test} survives {name!r}: {out[-2000:]}"
    finally:
        for path, text in saved.items():
            path.write_text(text)
