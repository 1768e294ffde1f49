"""A survey of a few years: rounds tell more sums than there are kinds of records, so how many sites have each follows.

A member lets sites of its own making, one with each record that a site can have, answer the questions of the job. How many
of the others' sites have each record are whole numbers, and what these sites say adds up to what is told.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.group.visits import Visits
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import Club, Tapped, clubs_of, tapped
from tests.federation.owners import dealt

OWN = 20
DIGITS = 2.0**24  # of the coarsest field under masks
SURE, SOLVER = 3.0, 3e-6  # a direction that sums tell, in their rounding; the solver's own tolerance
MODEL = CountSettings(rank=0, dispersion="negbin")


def survey(each: int, years: int, most: int, folder) -> tuple[dict[str, Club], np.ndarray]:
    """Three organisations, a visit to each site each June; records (sites, years) of the last two."""
    rng, J = np.random.default_rng(1), OWN + 2 * each
    owner = np.r_[np.zeros(OWN, int), 1 + np.arange(2 * each) % 2]
    site, month = np.repeat(np.arange(J), years), np.tile(12 * np.arange(years) + 5, J)
    mean = np.exp(0.6 * rng.normal(size=J))[site] * rng.gamma(3, 1 / 3, site.size)
    y = np.minimum(rng.poisson(mean), most).astype(float)
    return clubs_of(dealt((J, 12 * years), site, month, y, owner[site]), folder), y.reshape(J, years)[OWN:]


def said(question: msg.Message, answer: msg.Answer) -> np.ndarray:
    """The sums over sites and visits of an answer about a fit."""
    fields = {
        msg.Open: ("sums", "squares"),
        msg.Solve: ("months", "sites", "dispersion"),
        msg.Predict: ("totals", "months", "dispersion"),
    }.get(type(question), ())
    return np.concatenate([np.zeros(0), *(getattr(answer, name).ravel() for name in fields)])


def of_record(tap: Tapped, like: Visits, record: np.ndarray) -> np.ndarray:
    """What one site with this record says to all questions of the job."""
    n = record.size
    visits = replace(
        like.take(np.zeros(n, np.int64)), site=np.zeros(n, np.int32), month=np.unique(like.month),
        count=record.astype(float), detected=record > 0, observer=np.zeros(n, np.int32),
        site_id=np.array(["x"], dtype=object), region=np.array([""], dtype=object),
    )  # fmt: skip
    program = GroupProgram("member", visits, secret=b"", jointly=True)
    return np.concatenate([said(q, program.reply(q)) for q in tap.asked])


def numbers_of(each: np.ndarray, records: np.ndarray, told: np.ndarray, seed: int) -> np.ndarray | None:
    """How many sites have each record, such that what ``each`` (records, sums) says adds up; None if nothing does.

    Of several answers the one that a random objective likes best.
    """
    U, S, directions = np.linalg.svd(each.T * DIGITS, full_matrices=False)
    known = SURE < S
    value, width = (U.T @ (told * DIGITS))[known] / S[known], np.maximum(2 * SURE / S[known], SOLVER)
    rules = LinearConstraint(directions[known], value - width, value + width)
    like = np.random.default_rng(seed).normal(size=len(records)) * (-1) ** seed
    found = milp(like, constraints=rules, bounds=Bounds(0, np.inf), integrality=np.ones(len(records))).x
    return None if found is None else np.rint(found)


@pytest.mark.parametrize(
    ("each", "years", "most"),
    [(2, 3, 5), (5, 3, 4), (6, 5, 1), pytest.param(10, 8, 1, marks=pytest.mark.slow)],
)
def test_every_count_of_a_survey_of_a_few_years_is_told(each, years, most, tmp_path):
    """Of 4 sites in 3 years; of 10, where no count is above 4; of 12 in 5 and 20 in 8 years, where none is above 1."""
    clubs, true = survey(each, years, most, tmp_path)
    tap, _, _ = tapped(clubs, tmp_path, [MODEL], least=5)
    told = np.concatenate(
        [sum(said(q, a) for a in some[1:]) for q, some in zip(tap.asked, tap.told, strict=True)]
    )
    told = np.rint(told * DIGITS) / DIGITS
    records = np.array(list(product(range(most + 1), repeat=years)))
    alone = np.stack([of_record(tap, clubs["owner-0"].visits, record) for record in records])
    for seed in range(4):
        found = numbers_of(alone, records, told, seed)
        assert found is not None
        np.testing.assert_array_equal(
            np.repeat(records, found.astype(int), axis=0), true[np.lexsort(true.T[::-1])]
        )


@pytest.mark.parametrize(("each", "stops"), [(2, True), (3, True), (4, False)])
def test_a_study_stops_where_all_but_one_have_few_visits(each, stops, tmp_path):
    """Twelve, eighteen, and twenty-four, in three years."""
    clubs, _ = survey(each, 3, 7, tmp_path)
    plan = DataSpec(jointly=True, minimum=5, few_sites=False)
    if stops:
        with pytest.raises(
            ConfigError, match="or fewer than 20 visits: that one could work out single counts"
        ):
            tapped(clubs, tmp_path, [MODEL], plan, least=5)
    else:
        tapped(clubs, tmp_path, [MODEL], plan, least=5)
