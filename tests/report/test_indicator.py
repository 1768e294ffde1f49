"""The multi-species indicator by its definition, and what becomes of gaps, zeros and one species' errors."""

import numpy as np
import pandas as pd
import pytest

from fedmiss.errors import ConfigError
from fedmiss.report.indicator import FLOOR, STEP, indicator, indicator_trends, quadratic_smoother

YEARS = np.arange(2000, 2010)


def world(S=6, B=200, seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    totals, draws = {}, {}
    for s in range(S):
        t = np.exp(rng.normal(4, 1) + rng.normal(0, 0.03) * (YEARS - 2000) + rng.normal(0, 0.1, YEARS.size))
        totals[f"s{s}"] = pd.Series(t, index=YEARS)
        draws[f"s{s}"] = pd.DataFrame(t * np.exp(rng.normal(0, noise, (B, YEARS.size))), columns=YEARS)
    return totals, draws


def test_it_is_the_geometric_mean_of_the_indices():
    totals, draws = world()
    got = indicator(totals, draws, base=2003)
    index = np.stack([t / t.loc[2003] for t in totals.values()])
    np.testing.assert_allclose(got["index"], 100 * np.exp(np.log(index).mean(axis=0)), rtol=1e-10)
    assert got.loc[3, "index"] == pytest.approx(100)
    # independent errors: variance of log ratio is 2 noise^2 / S
    half = np.log(got["hi"] / got["index"])[got["year"] != 2003]
    np.testing.assert_allclose(half, 1.96 * 0.1 * np.sqrt(2 / 6), rtol=0.25)


def test_a_species_that_enters_late_tells_the_ratios_it_has_and_does_not_move_the_rest():
    totals, _ = world(seed=1)
    whole = indicator(totals, {})
    # a late species that follows the mean of the others leaves the indicator as it is
    follower = whole.set_index("year")["index"].loc[2004:] * 3.7
    more = indicator(totals | {"late": follower}, {})
    np.testing.assert_allclose(more["index"], whole["index"], rtol=1e-9)
    assert more["n_species"].tolist() == [6] * 4 + [7] * 6
    assert whole["lo"].isna().all()


def test_scale_does_not_matter_and_a_zero_is_held_at_the_floor():
    totals, draws = world(seed=2)
    other = {k: 1000 * v if k == "s0" else v for k, v in totals.items()}
    np.testing.assert_allclose(indicator(totals, {})["index"], indicator(other, {})["index"], rtol=1e-10)
    gone = totals["s0"].copy()
    gone.iloc[-1] = 0.0
    got = indicator(totals | {"s0": gone}, draws)["index"].iloc[-1]
    before = indicator(totals, {})["index"].iloc[-1]
    # the last step of this species is as long as a step may be; its floor lies lower still
    assert FLOOR * gone.mean() / gone.iloc[-2] < 1 / STEP
    was = totals["s0"].iloc[-1] / totals["s0"].iloc[-2]
    assert got / before == pytest.approx((1 / STEP / was) ** (1 / 6), rel=1e-6)


def test_the_smooth_is_a_local_quadratic():
    x = np.arange(2000.0, 2021.0)
    S = quadratic_smoother(x)
    curve = 3 - 0.2 * (x - 2007) + 0.01 * (x - 2007) ** 2
    np.testing.assert_allclose(S @ curve, curve, rtol=1e-10)
    # by its definition, at one inner year: tricube weights over the 15 nearest of 21 years
    y, at = np.sin(x / 3.0), 6
    far = np.abs(x - x[at])
    w = np.clip(1 - (far / np.sort(far)[14]) ** 3, 0, None) ** 3
    fit = np.polynomial.Polynomial.fit(x - x[at], y, 2, w=np.sqrt(w), domain=[-20, 20], window=[-20, 20])
    assert (S @ y)[at] == pytest.approx(fit(0.0), abs=1e-10)
    noise = np.random.default_rng(0).normal(0, 1, (4000, x.size)) @ S.T
    assert noise[:, 10].std() < 0.6, "it smooths"


def test_linear_trends_and_classes_of_change_are_those_of_the_draws():
    """Errors of years are independent, so the error of a slope is known."""
    years = np.arange(2000, 2020)
    rng = np.random.default_rng(4)
    totals = {f"s{k}": pd.Series(np.exp(5 - 0.03 * (years - 2000)) * (k + 1), years) for k in range(4)}
    index = 100 * np.exp(-0.03 * (years - 2000))
    draws = {k: pd.DataFrame(index * np.exp(rng.normal(0, 0.1, (2000, 20))), columns=years) for k in totals}
    all_years, last = indicator_trends(totals, draws).to_dict("records")
    assert all_years["slope"] == pytest.approx(-0.03, abs=1e-12)
    assert (all_years["from_year"], last["from_year"], last["to_year"]) == (2000, 2010, 2019)
    for row, n in ((all_years, 20), (last, 10)):
        x = np.arange(n) - (n - 1) / 2
        assert row["slope_se"] == pytest.approx(0.1 / 2 / np.sqrt(x @ x), rel=0.05)
    assert all_years["trend_class"] == "moderate decline"
    table = indicator(totals, draws)
    np.testing.assert_allclose(table["smooth"], table["index"], rtol=1e-9)  # a line of logs is its own smooth
    assert table["change_class"].iloc[0] == "moderate decline"
    assert table["change_class"].iloc[-1] == ""
    assert (table["smooth_hi"] - table["smooth_lo"] < table["hi"] - table["lo"])[1:-1].all()
    bare = indicator(totals, {})
    assert bare["smooth_lo"].isna().all()
    assert set(bare["change_class"]) == {""}
    assert indicator_trends(totals, {})["trend_class"].tolist() == ["not classified"] * 2


@pytest.mark.parametrize("convention", ["long-term", "trim"])
def test_years_that_scatter_about_a_flat_line_are_no_decline(convention):
    """The slope of just these years is known well; that of a longer time is not, and it is said which one has the class."""
    years, said, held = np.arange(2010, 2022), [], []
    for seed in range(40):
        rng = np.random.default_rng([seed, 5])
        common = rng.normal(0, 0.15, years.size)
        true = {f"s{k}": common + rng.normal(0, 0.15, years.size) for k in range(4)}
        noise = rng.normal(0, 0.05, (4, 1 + 60, years.size))
        totals = {
            k: pd.Series(np.exp(line + e[0]), years) for (k, line), e in zip(true.items(), noise, strict=True)
        }
        draws = {
            k: pd.DataFrame(totals[k].to_numpy() * np.exp(e[1:]), columns=years)
            for k, e in zip(true, noise, strict=True)
        }
        row = indicator_trends(totals, draws, convention=convention).iloc[0]
        assert row["convention"] == convention
        said.append(row["trend_class"].split()[-1] in ("increase", "decline"))
        of_years = 100 * np.expm1(np.polyfit(years, np.mean(list(true.values()), axis=0), 1)[0])
        held.append(row["percent_lo_sampling"] < of_years < row["percent_hi_sampling"])
    assert np.mean(held) > 0.8
    assert np.mean(said) < 0.25 if convention == "long-term" else np.mean(said) > 0.4


def test_the_order_of_years_and_a_blank_year_change_nothing_else():
    totals, draws = world(S=2)
    meant = indicator(totals, draws)
    turned = {name: series[::-1] for name, series in totals.items()}
    # Replicates of a table that was not sorted went to the years from the other end.
    pd.testing.assert_frame_equal(indicator(turned, draws), meant)
    blank = {**totals, "s0": totals["s0"].where(totals["s0"].index != 2004)}
    without = {**totals, "s0": totals["s0"].drop(2004)}
    pd.testing.assert_frame_equal(indicator(blank, draws), indicator(without, draws))
    assert indicator(blank, draws)["n_species"].tolist() == [2, 2, 2, 2, 1, 2, 2, 2, 2, 2]


def test_years_that_are_texts_are_the_same_years():
    years = [2001, 2002, 2003]
    total, draws = (
        pd.Series([5.0, 6.0, 8.0], years),
        pd.DataFrame(np.ones((4, 3)) + np.arange(4)[:, None] / 9, columns=years),
    )
    as_texts = (
        pd.Series(total.to_numpy(), list(map(str, years))),
        draws.set_axis(list(map(str, years)), axis=1),
    )
    one = indicator({"a": total, "b": total}, {"a": draws}, span=1.0)
    two = indicator({"a": as_texts[0], "b": total}, {"a": as_texts[1]}, span=1.0)
    pd.testing.assert_frame_equal(one, two)


def test_a_year_that_a_species_lacks_takes_nothing_from_its_change():
    """Without a line over the gap the factor of 4 would be lost: no step of that species has both of its years."""
    years = list(range(2000, 2006))
    totals = {
        "gap": pd.Series([1.0, 4.0, 4.0], [2000, 2002, 2005]),
        "steady": pd.Series(np.full(6, 9.0), years),
    }
    got = indicator(totals, {})
    np.testing.assert_allclose(got["index"], 100 * np.sqrt([1, 2, 4, 4, 4, 4]))
    assert got["n_species"].tolist() == [2, 1, 2, 1, 1, 2]
    # Two surveys of alternate years are linked by the years of each between those of the other.
    even, odd = pd.Series(2.0 ** np.arange(3), years[::2]), pd.Series(2.0 ** np.arange(3), years[1::2])
    turns = indicator({"even": even, "odd": odd}, {})["index"]
    np.testing.assert_allclose(turns, 100 * 2 ** (np.arange(6) / 2))


def test_gaps_leave_the_interval_of_the_other_years_right():
    """The ups and downs of years beside a gap must not stay in the indicator."""
    rng, hit = np.random.default_rng(6), []
    for _ in range(60):
        true = rng.normal(0, 0.3, (8, 12))
        totals, draws = {}, {}
        for s, species in enumerate(true):
            years = np.delete(np.arange(2000, 2012), rng.integers(1, 11, 2))
            seen = species[years - 2000] + rng.normal(0, 0.05, years.size)
            totals[str(s)] = pd.Series(np.exp(seen), years)
            draws[str(s)] = pd.DataFrame(np.exp(seen + rng.normal(0, 0.05, (50, years.size))), columns=years)
        last = indicator(totals, draws).iloc[-1]
        hit.append(last["lo"] <= 100 * np.exp((true[:, -1] - true[:, 0]).mean()) <= last["hi"])
    assert np.mean(hit) > 0.8


def test_the_last_ten_years_are_those_of_the_calendar():
    totals = {"a": pd.Series(np.arange(1.0, 16.0), range(1990, 2020, 2))}
    _, last = indicator_trends(totals, {}).to_dict("records")
    assert (last["from_year"], last["to_year"]) == (2010, 2018)


def test_what_species_err_by_together_is_in_the_interval():
    """An observer who weighs twice in replicate 7 does so for every species: replicates of one number stand together."""
    totals, draws = world(S=8)
    noise = np.log(draws["s0"] / totals["s0"].to_numpy())
    same = {name: total * np.exp(noise) for name, total in totals.items()}
    half = np.log(indicator(totals, same)["hi"] / indicator(totals, same)["index"])[1:]
    np.testing.assert_allclose(half, 1.96 * 0.1 * np.sqrt(2), rtol=0.25)


TOTALS, DRAWS = world(S=2)
ONE, OTHER = TOTALS["s0"], TOTALS["s1"]


@pytest.mark.parametrize(
    ("totals", "draws", "words"),
    [
        ({}, {}, "there is none"),
        ({"a": ONE, "b": OTHER.rename(index=lambda year: year + 50)}, {}, "linked by no species"),
        ({"s0": ONE.where(ONE.index != 2004, np.inf)}, {}, "'s0' hold numbers that are not finite"),
        ({"s0": ONE * np.nan}, {}, "'s0' has no yearly total"),
        ({"s0": -ONE}, {}, "'s0' has no total above 0"),
        ({"s0": ONE.rename(index=lambda year: f"in {year}")}, {}, "'in 2000' is none"),
        ({"s0": pd.concat([ONE, ONE])}, {}, "'s0' has two totals of 2000"),
        (TOTALS, {"wren": DRAWS["s0"]}, "replicates of 'wren', and no totals"),
        (TOTALS, {"s0": DRAWS["s0"].drop(columns=2003)}, "of 's0' have no year 2003"),
        (TOTALS, {"s0": DRAWS["s0"] * np.nan}, "of 's0' hold numbers that are not finite"),
    ],
)  # fmt: skip
def test_totals_and_replicates_that_say_nothing_are_refused_by_name(totals, draws, words):
    with pytest.raises(ConfigError, match=words):
        indicator({"s1": OTHER, **totals} if "s0" in totals else totals, draws)
    with pytest.raises(ConfigError, match="base 1999"):
        indicator(TOTALS, {}, base=1999)
    with pytest.raises(ConfigError, match="last is 0"):
        indicator_trends(TOTALS, DRAWS, last=0)


def test_totals_may_be_columns_of_a_frame():
    totals = {"a": pd.Series([1.0, 2.0], [2001, 2002]), "b": pd.Series([2.0, 3.0], [2001, 2002])}
    pd.testing.assert_frame_equal(indicator(pd.DataFrame(totals), {}), indicator(totals, {}))
    with pytest.raises(ConfigError, match=r"base is '2002' .must be a whole number"):
        indicator(totals, {}, base="2002")  # "the base 2002 is not among the years 2001 to 2002"
