"""What an organisation is told of its own data before it takes part, and which data are refused."""

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.atomic import read_json, write_json
from fedmiss.errors import InputError
from fedmiss.federation.group.visits import check_counts
from fedmiss.federation.rules import LARGEST_COUNT
from fedmiss.network import member
from fedmiss.network.kits import open_kit
from fedmiss.network.member import dry_run, held, open_data
from fedmiss.pipeline.panels import open_panel

from .conftest import small_study


def test_data_that_do_not_fit_the_study_are_refused(tmp_path, folder, kit, panels):
    assert "visits at" in dry_run(kit, panels["north"])[0]
    write_json(kit.folder / "study.json", read_json(kit.folder / "study.json") | {"species": "Ardea cinerea"})
    with pytest.raises(InputError, match="is about 'Ardea alba', the study about 'Ardea cinerea'"):
        dry_run(open_kit(kit.folder), panels["north"])
    with pytest.raises(InputError, match="is no kit"):
        open_kit(tmp_path)


def test_a_species_in_other_capitals_is_the_same(folder, panels):
    kit = folder / "kits" / "north"
    write_json(kit / "study.json", read_json(kit / "study.json") | {"species": "ardea ALBA"})
    assert "visits at" in dry_run(open_kit(kit), panels["north"])[0]
    # The members compare what they hold to the letter.
    assert held(open_kit(kit), open_data(open_kit(kit), panels["north"])).species == "ardea ALBA"


def test_finds_without_a_number_are_said_and_nothing_else_is_refused(kit, panels, monkeypatch):
    visits = held(kit, open_data(kit, panels["north"]))
    found = np.flatnonzero(visits.detected)
    count = visits.count.copy()
    count[found[:7]] = np.nan
    monkeypatch.setattr(member, "held", lambda kit, panel: replace(visits, count=count))
    assert f"  your visits that found the species, without a number (X): 7 of {found.size};" in " ".join(
        dry_run(kit, panels["north"])
    )
    monkeypatch.setattr(
        member,
        "held",
        lambda kit, panel: replace(visits, count=np.where(visits.detected, np.nan, visits.count)),
    )
    with pytest.raises(InputError, match=r"counted on none of them \(all are X\)"):
        dry_run(kit, panels["north"])


def test_yearly_counts_are_of_years_before_the_approval(kit, panels, monkeypatch):
    visits = held(kit, open_data(kit, panels["north"]))
    june = replace(visits, month=visits.month // 12 * 12 + 5)
    monkeypatch.setattr(member, "held", lambda kit, panel: june)
    said = " ".join(dry_run(kit, panels["north"], own_sites=2))
    assert f"with a count, in {np.unique(june.month[~np.isnan(june.count)]).size} years" in said
    assert "month" not in said


def test_who_brings_fewer_sites_than_months_is_told_that_levels_may_follow(kit, panels, monkeypatch):
    visits = held(kit, open_data(kit, panels["north"]))
    counted = ~np.isnan(visits.count)
    months = np.unique(visits.month[counted]).size
    sites = np.unique(visits.site[counted])
    monkeypatch.setattr(member, "ROUNDS", 1)  # the panel has not three sites a month
    for n in (months - 1, months):
        few = visits.take(np.isin(visits.site, sites[:n]))
        assert np.unique(few.month[~np.isnan(few.count)]).size == months
        monkeypatch.setattr(member, "held", lambda kit, panel, few=few: few)
        said = " ".join(dry_run(kit, panels["north"]))
        assert (f"sites with a count: {n}, fewer than 1 times your years ({months})" in said) == (n < months)


def test_who_brings_few_sites_to_a_region_is_told_that_their_birds_may_follow(kit, panels, monkeypatch):
    visits = held(kit, open_data(kit, panels["north"]))
    sites = np.unique(visits.site[~np.isnan(visits.count)])
    least = member.SITES_OF_A_REGION
    for few in (least - 1, least):
        region = np.full(visits.site_id.size, "south", dtype=object)
        region[sites[:few]] = "north"
        monkeypatch.setattr(member, "held", lambda kit, panel, region=region: replace(visits, region=region))
        said = " ".join(dry_run(kit, panels["north"]))
        assert (f"regions with few of them: north ({few})" in said) == (few < least)


def test_who_withholds_most_pairs_of_months_is_told_that_patterns_need_them(kit, panels, monkeypatch):
    """A third of the visits: enough sites in a year, few in two years."""
    visits = held(kit, open_data(kit, panels["north"]))
    kit.study = small_study(model={"model": "quasi", "max_rank": 1})
    few = visits.take(np.random.default_rng(1).random(visits.site.size) < 0.35)
    monkeypatch.setattr(member, "held", lambda kit, panel: few)
    at = np.unique(np.stack([few.site, few.month])[:, ~np.isnan(few.count)], axis=1)
    month = np.unique(at[1], return_inverse=True)[1]
    seen = np.zeros((few.site_id.size, month.max() + 1))
    seen[at[0], month] = 1
    both = seen.T @ seen
    least = int(np.median(np.diag(both)[np.diag(both) > 0]))
    enough = np.diag(both) >= least
    two = both[np.ix_(enough, enough)][np.tril_indices(int(enough.sum()), -1)]
    share = (two < least)[two > 0].mean()
    assert share > 0.5
    said = " ".join(dry_run(kit, panels["north"], own_sites=least))
    assert (
        f"{share:.0%} of the pairs of other years have fewer than {least} of your own sites in both" in said
    )
    for rank, own_sites in ((1, 1), (0, least)):
        kit.study = small_study(model={"model": "quasi", "max_rank": rank})
        assert "pairs of other years" not in " ".join(dry_run(kit, panels["north"], own_sites))


def test_a_count_that_masks_cannot_carry_is_named_before_anything_is_sent(folder, panels):
    kit = open_kit(folder / "kits" / "north")
    for count, fine in ((LARGEST_COUNT, True), (LARGEST_COUNT + 1, False), (99_999_999_999, False)):
        visits = next(iter(open_panel(panels["north"]).visits(effort=False)[0].values()))
        at = int(np.argmax(visits.count))
        visits.count[at] = count
        if fine:
            check_counts("north", visits)
            continue
        with pytest.raises(InputError) as error:
            check_counts("north", visits)
        assert f"{count:,}" in str(error.value)
        assert f"limit {LARGEST_COUNT:,}" in str(error.value)
    assert not kit.journal.exists()
