"""A setting that a method does not use is refused, in Python, in recipes and on the command line."""

from dataclasses import asdict

import pytest

from fedmiss.errors import ConfigError
from fedmiss.files import read_manifest
from fedmiss.pipeline.fitting import fit_panel
from fedmiss.pipeline.panels import PanelFolder
from fedmiss.pipeline.recipe import read_recipe
from fedmiss.pipeline.settings import METHODS, FitSettings
from fedmiss.settings import defaults, definitions
from fedmiss.simulate.panel_folder import write_panel
from fedmiss.simulate.panels import simulate_panel
from fedmiss.tables import read_table
from tests.cli.terminal import fedmiss

ALL = definitions(FitSettings)
DEFAULTS = defaults(FitSettings)
OTHER = {
    "model": "log1p", "rank": 1, "penalty": 2.0, "time": "fixed", "effort": "none", "observers": True, "occupancy": True,
    "folds": 3,
    "folds_by": "cell", "one_se": True, "average": False, "structure": "none", "max_rank": 1, "bootstrap": 3, "seed": 9,
    "minimum": 2, "own": True, "rounds": 12, "gamma": 0.3, "alpha": 0.3, "levels": 8,
    "compressor": "natural", "participation": 0.5, "batch": 4, "batch_sum": "paper",
}  # fmt: skip
BESIDE = {"batch_sum": {"batch": 4}}
FOREIGN = [(kind, name) for kind in METHODS for name in ALL if name not in definitions(kind)]
OWN = [(kind, name) for kind in METHODS for name in definitions(kind) if name != "method"]


def words(name: str, value: object) -> list[str]:
    """The option as it is typed."""
    flag = ALL[name][1].flag(name)
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, str(value)]


@pytest.fixture(scope="module")
def panel(tmp_path_factory):
    made = simulate_panel(16, 12, 0.8, rank=1, seed=5, observers=6, groups=2)
    return write_panel(made, tmp_path_factory.mktemp("sim") / "panel", start="2012-01", settings={})


def test_the_table_above_names_every_setting():
    assert set(OTHER) == set(ALL) - {"method"}
    assert all(OTHER[name] != DEFAULTS[name] for name in OTHER)


@pytest.mark.parametrize("given", ["other", "default"])
@pytest.mark.parametrize(("kind", "name"), FOREIGN)
def test_a_setting_of_another_method_is_refused_by_name(kind, name, given, tmp_path):
    value = OTHER[name] if given == "other" or DEFAULTS[name] is None else DEFAULTS[name]
    flag = ALL[name][1].flag(name)
    able = [k.called for k in METHODS if name in definitions(k)]
    said = [f"--method {kind.called} does not use {flag}.", f"Leave {flag} out", *able]
    with pytest.raises(ConfigError) as told:
        FitSettings(method=kind.called, **{name: value})
    assert all(w in str(told.value) for w in said), told.value
    (tmp_path / "a.csv").touch()
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    recipe = tmp_path / "r.toml"
    recipe.write_text(f'[ingest]\nfiles = "a.csv"\n[fit]\nmethod = "{kind.called}"\n{name} = {shown}\n')
    with pytest.raises(ConfigError) as told:
        read_recipe(recipe)
    assert all(w in str(told.value) for w in ["r.toml: fit", *said]), told.value


@pytest.mark.slow
@pytest.mark.parametrize("kind", METHODS)
def test_the_command_line_refuses_even_a_default_that_is_typed(kind, panel, tmp_path):
    for name in (n for k, n in FOREIGN if k is kind):
        value = DEFAULTS[name] if DEFAULTS[name] not in (None, "") else OTHER[name]
        out = tmp_path / "fit"
        made = fedmiss("fit", panel, "--method", kind.called, *words(name, value), "--out", out)
        assert made.code != 0
        assert f"does not use {ALL[name][1].flag(name)}" in " ".join(made.err.split()), (name, made.err)
        assert not out.exists()


@pytest.mark.parametrize(("kind", "name"), OWN)
def test_a_setting_of_the_method_is_kept_as_it_was_given(kind, name):
    beside = BESIDE.get(name, {})
    plain = asdict(FitSettings(method=kind.called, **beside))
    made = asdict(FitSettings(method=kind.called, **beside, **{name: OTHER[name]}))
    assert {key for key in plain if plain[key] != made[key]} == {name}
    assert set(made) == set(definitions(kind))


@pytest.mark.parametrize("structure", ["covariate", "visits,visits", "", "smooth;visits"])
def test_a_structure_of_unknown_words_is_refused_at_once(structure):
    with pytest.raises(
        ConfigError, match=r"--structure is .* \(must be auto, none, or a comma list of visits"
    ):
        FitSettings(structure=structure)


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"rank": 1, "max_rank": 2}, "--max-rank"),
        ({"rank": 1, "model": "quasi", "folds": 5}, "--folds"),
        ({"rank": 1, "model": "negbin", "one_se": True}, "--one-se"),
        ({"time": "fixed", "structure": "none"}, "--structure"),
        ({"one_se": True, "average": True}, "--average"),
        ({"one_se": True, "average": False}, "--no-average"),
        ({"own": True, "bootstrap": 0}, "--own"),
        ({"method": "fedmissem", "compressor": "randk:k=9", "levels": 16}, "--levels"),
        ({"method": "fedmissem", "batch_sum": "full"}, "--batch-sum"),
    ],
)
def test_a_setting_that_does_nothing_beside_the_others_is_refused(settings, flag):
    with pytest.raises(ConfigError, match=f"{flag} does nothing here"):
        FitSettings(**settings)
    name = next(n for n in settings if ALL[n][1].flag(n) == flag.replace("--no-", "--"))
    FitSettings(**{key: value for key, value in settings.items() if key != name})


@pytest.mark.parametrize(
    "name", ["gamma", "alpha", "levels", "participation", "batch", "batch_sum", "rank", "seed"]
)
def test_a_setting_of_algorithm_7_changes_its_result_and_its_manifest_alone(name, panel, tmp_path):
    more = {"rounds": 4, "batch": 6, "participation": 0.9}
    value = OTHER[name]
    a = fit_panel(panel, tmp_path / "a", FitSettings(method="fedmissem", **more))
    b = fit_panel(panel, tmp_path / "b", FitSettings(method="fedmissem", **more | {name: value}))
    kept, changed = (read_manifest(f, "fit")["settings"] for f in (a, b))
    assert {key for key in kept if kept[key] != changed[key]} == {name}
    assert set(kept) == set(definitions(METHODS[1]))
    assert (a / "month_factors.parquet").read_bytes() != (b / "month_factors.parquet").read_bytes()


@pytest.mark.parametrize(("observers", "sites"), [(1, True), (12, None)])
def test_a_fit_says_when_replicates_weigh_sites(tmp_path, observers, sites):
    made = simulate_panel(12, 24, 0.5, rank=0, seed=1, observers=observers, groups=1)
    panel = write_panel(made, tmp_path / "panel")
    settings = FitSettings(model="quasi", rank="0", bootstrap=0, structure="none")
    fit = fit_panel(panel, tmp_path / "fit", settings)
    assert read_manifest(fit, "fit")["results"].get("sites_redrawn") is sites


@pytest.mark.parametrize(("model", "lucky"), [("quasi", False), ("log1p", True), ("bernoulli", True)])
def test_who_predicts_totals_of_sites_that_were_lucky_is_told_so(model, lucky, panel, tmp_path, monkeypatch):
    """A model of counts is compared with what is expected of sites that are there for a find: one below them is too low."""
    monkeypatch.setattr(PanelFolder, "chosen_by_detection", True)
    settings = FitSettings(model=model, max_rank=1, folds=2, bootstrap=0, structure="none")
    advice = read_manifest(fit_panel(panel, tmp_path / "fit", settings), "fit")["results"]["advice"]
    assert ("lucky" in advice) == lucky


@pytest.mark.parametrize(("settings", "reached"), [({}, True), ({"rounds": 4}, False), ({"batch": 4}, False)])
def test_algorithm_7_has_converged_where_its_mean_field_vanished(settings, reached, panel, tmp_path):
    """A run ends with its rounds, at a solution or not; of each the page said that it did not converge, and to use none."""
    fit = fit_panel(
        panel, tmp_path / "fit", FitSettings(method="fedmissem", rank=1, **{"rounds": 600} | settings)
    )
    said = read_manifest(fit, "fit")["results"]
    field = read_table(fit / "trace.parquet", "trace")["h_norm2"].to_numpy()
    assert said["converged"] is reached
    assert (field[-1] < 1e-10 * field[0]) == reached
    assert said["stop_reason"] == f"rounds: {len(field)} done"
