"""From the settings of a fit and a panel to the model's settings, the candidates, and the groups that answer."""

from __future__ import annotations

from dataclasses import asdict, replace

from fedmiss.errors import ConfigError
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.hub.job import JobSpec
from fedmiss.federation.local import LocalFederation
from fedmiss.files import hash_json
from fedmiss.models.lowrank.choice import default_candidates
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES
from fedmiss.pipeline.panels import PanelFolder
from fedmiss.pipeline.settings import MODELS, FastSettings, SaemSettings, named_features

__all__ = ["base_settings", "candidates", "check_fixed", "federation_of", "job_of", "presence_if_uncounted"]


def check_fixed(s: FastSettings) -> None:
    """Refuse what the plain site and time model does not have."""
    other = {
        "--model": s.model not in ("auto", "quasi"),
        "--rank": s.rank not in ("auto", 0),
        "--effort": s.effort not in ("auto", "none"),
        "--observers": s.observers,
        "--occupancy": s.occupancy,
        "--minimum": s.minimum > 1,
    }
    wrong = [name for name, bad in other.items() if bad]
    if s.time == "fixed" and wrong:
        raise ConfigError(
            f"--time fixed is the plain site and time model of Poisson counts: leave out {', '.join(wrong)}. (With a least "
            "number behind each sum it cannot be fitted: a pair of months may rest on one site.)"
        )


def base_settings(s: FastSettings, *, calibrate: bool = True) -> CountSettings:
    """Translate the step's settings into the model's, before rank and model are chosen."""
    if s.time == "fixed":
        return CountSettings(time="fixed", rank=0, season=False, slopes=False, seed=s.seed)
    chosen = MODELS["negbin" if s.model == "auto" else s.model]
    rank = 2 if s.rank == "auto" else s.rank
    return CountSettings(
        rank=rank,
        observers=s.observers,
        occupancy=s.occupancy,
        features=named_features(s.structure),
        seed=s.seed,
        calibrate=calibrate,
        **chosen,  # type: ignore[arg-type]
    )


def tried(s: FastSettings, folder: PanelFolder) -> tuple[str, ...] | None:
    """Features of sites that the choice tries; None for no trial.

    Not the number of visits where sites are listed because the species was seen there.
    """
    if s.structure != "auto":
        return None
    return tuple(f for f in FEATURES if f != "visits" or not folder.listed_by_detection)


def candidates(s: FastSettings, base: CountSettings) -> list[CountSettings]:
    """Candidates of the cross-validation; one means that nothing is to be chosen."""
    if s.time == "fixed":
        return [base]
    out = [base]
    if s.rank == "auto" and s.model == "auto":
        out = default_candidates(base, s.max_rank)
    elif s.rank == "auto":
        out = [replace(base, rank=r) for r in range(s.max_rank + 1)]
    elif s.model == "auto":
        other = (MODELS[name] for name in ("quasi", "log1p"))
        out += [replace(base, **{"scale": "raw", "dispersion": "quasi"} | m) for m in other]  # type: ignore[arg-type]
    return [c for c in out if not (s.occupancy and c.scale == "log1p")]  # a logarithm has no zero of its own


def presence_if_uncounted(folder: PanelFolder, settings: FastSettings) -> FastSettings:
    """Fit presence and absence where a species was found and never counted (all X): its counts are all 0 and say nothing."""
    if settings.model == "auto" and folder.facts.birds == 0 and folder.facts.n_detected > 0:
        return replace(settings, model="bernoulli")
    return settings


def _fixed(s: FastSettings | SaemSettings) -> bool:
    return isinstance(s, FastSettings) and s.time == "fixed"


def plan_of(folder: PanelFolder, s: FastSettings | SaemSettings) -> DataSpec:
    """What is wanted of the groups of a panel folder."""
    model = "quasi" if isinstance(s, SaemSettings) else s.model
    return DataSpec(
        species=folder.facts.species,
        months=folder.stamps,
        effort=folder.wanted_terms("none" if _fixed(s) else s.effort),
        detections=MODELS.get(model, MODELS["quasi"])["family"] == "bernoulli",
        joint=s.joint and not _fixed(s),
        duplicates=folder.several_sources,
        minimum=s.minimum,
    )


def job_of(folder: PanelFolder, s: FastSettings) -> JobSpec:
    """The whole job of a fit."""
    chosen = candidates(s, base_settings(s, calibrate=not folder.chosen_by_detection))
    return JobSpec(
        plan_of(folder, s), chosen, folds=s.folds, by=s.folds_by, one_se=s.one_se, bootstrap=s.bootstrap, seed=s.seed,
        structure=tried(s, folder) if len(chosen) > 1 else None, average=s.average,
    )  # fmt: skip


def federation_of(folder: PanelFolder, s: FastSettings | SaemSettings) -> LocalFederation:
    """Groups of a panel folder and a hub, agreed on axes, effort terms and shared sites."""
    plan = plan_of(folder, s)
    held, at = folder.visits(effort=s.effort != "none" and not _fixed(s))
    return LocalFederation(
        held,
        at,
        len(folder.sites),
        plan,
        secrets=folder.secrets(),
        more=hash_json(asdict(s)).encode(),
        own=isinstance(s, FastSettings) and s.own,
    )
