"""A season over the New Year is one year in the fit too: moved by two months into one calendar year it is the same fit."""

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.federation.calls import fit_counts
from fedmiss.federation.hub.agree import DataSpec, agree
from fedmiss.federation.link import InProcess, Link
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings

from .network import JOB, SETTINGS, clubs_of
from .owners import owned

WINTERS, SITES, MONTHS = 8, 30, 4  # November to February


def panels(seed):
    """The same counts as of November to February, and as of January to April; two groups."""
    r = np.random.default_rng(seed)
    level = (
        r.normal(1, 0.8, SITES)[:, None] - 0.05 * np.arange(WINTERS) + r.normal(0, 0.4, WINTERS)
    ) * np.where(r.random((SITES, WINTERS)) < 0.8, 1.0, -6.0)
    y = r.poisson(np.exp(np.repeat(level, MONTHS, axis=1)))
    site, month = np.nonzero(np.repeat(r.random((SITES, WINTERS)) < 0.6, MONTHS, axis=1))
    groups = [
        Group.of(name, site[mine], month[mine], y[site[mine], month[mine]].astype(float))
        for name, mine in (("a", site % 2 == 0), ("b", site % 2 == 1))
    ]
    winter = ((2001 + np.arange(WINTERS))[:, None] * 12 + np.arange(-2, 2)).ravel()
    return [
        GroupPanel.of(SITES, winter.size, groups, (stamps % 12 + 1, stamps // 12))
        for stamps in (winter, winter + 2)
    ]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("settings", [CountSettings(rank=1), CountSettings(rank=0, occupancy=True)])
def test_a_winter_is_fitted_as_any_other_season(seed, settings):
    over, inside = panels(seed)
    one, other = fit_counts(over, settings), fit_counts(inside, settings)
    np.testing.assert_allclose(one.expected(), other.expected(), rtol=1e-7)
    if settings.occupancy:
        np.testing.assert_array_equal(one.year, np.repeat(np.arange(WINTERS), MONTHS))


def test_folds_of_blocks_are_whole_winters_in_groups_that_lack_months_too():
    panel, _ = panels(0)
    a, b = panel.groups
    early = a.month % MONTHS < 2  # November and December only
    part = Group.of("a", a.site[early], a.month[early], a.count[early])
    federation = LocalFederation.of_panel(replace(panel, groups=(part, b)))
    for program in federation.programs.values():
        used = program.need()
        fold = program.fold_of("block", 5, 0, used)
        key = used.site.astype(int) * WINTERS + used.month // MONTHS
        for block in np.unique(key):
            assert np.unique(fold[key == block]).size == 1
        assert np.unique(fold).size > 1


@pytest.mark.parametrize(("odd", "said"), [(6, True), (4, False), (None, False)])
def test_a_study_says_which_months_keep_its_winters_from_being_one_season(odd, said, tmp_path):
    """Few visits of one organisation split every winter of all of them, and nobody was told, as `fedmiss panel` tells."""
    stamps = [12 * (2001 + k // 7) + 8 + k % 7 for k in range(35)]  # September to March
    months = np.sort([*stamps, *([12 * 2003 + odd - 1] if odd else [])])
    panel = owned(3, n=1500, J=45, L=months.size)
    panel = replace(panel, calendar=(months % 12 + 1, months // 12))
    programs = {name: club.program() for name, club in clubs_of(panel, tmp_path).items()}
    agreed = agree(Link(InProcess(programs), JOB[:8], SETTINGS), DataSpec(jointly=True, minimum=5, share=0.7))
    found = [note for note in agreed.notes if "calendar months 6, in which most years lack" in note]
    assert len(found) == said
    assert not said or "season = [1, 2, 3, 9, 10, 11, 12]" in found[0]
