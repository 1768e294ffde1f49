"""From the settings of a fit and a panel to the model's settings, the candidates, and the groups that answer."""

from __future__ import annotations

from dataclasses import asdict, replace

from fedmiss.atomic import hash_json
from fedmiss.errors import ConfigError
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.hub.job import JobSpec
from fedmiss.federation.local import MOST_PROGRAMS, LocalFederation
from fedmiss.models.lowrank.choice import default_candidates
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES, effort_words
from fedmiss.pipeline.panels import PanelFolder
from fedmiss.pipeline.settings import MODELS, FastSettings, SaemSettings, named_features


def check_fixed(settings: FastSettings) -> None:
    """Refuse what the plain site and time model does not have."""
    other = {
        "--model": settings.model not in ("auto", "quasi"),
        "--rank": settings.rank not in ("auto", 0),
        "--effort": settings.effort not in ("auto", "none"),
        "--observers": settings.observers,
        "--occupancy": settings.occupancy,
        "--minimum": settings.minimum > 1,
    }
    wrong = [name for name, bad in other.items() if bad]
    if settings.time == "fixed" and wrong:
        raise ConfigError(
            f"--time fixed is the plain site and time model of Poisson counts: leave out {', '.join(wrong)}. (With a least "
            "number behind each sum it cannot be fitted: a pair of months may rest on one site.)"
        )


def base_settings(settings: FastSettings) -> CountSettings:
    """Translate the step's settings into the model's, before rank and model are chosen."""
    if settings.time == "fixed":
        return CountSettings(time="fixed", rank=0, season=False, slopes=False, seed=settings.seed)
    chosen = MODELS["negbin" if settings.model == "auto" else settings.model]
    rank = 2 if settings.rank == "auto" else settings.rank
    return CountSettings(
        rank=rank,
        observers=settings.observers,
        occupancy=settings.occupancy,
        features=named_features(settings.structure),
        seed=settings.seed,
        **chosen,  # type: ignore[arg-type]
    )


def tried(settings: FastSettings, folder: PanelFolder) -> tuple[str, ...] | None:
    """Features of sites that the choice tries; None for no trial.

    Not the number of visits where sites are listed because the species was seen there.
    """
    if settings.structure != "auto":
        return None
    # Where only sites with the species are listed, visits cannot say where the others are.
    return tuple(feature for feature in FEATURES if feature != "visits" or not folder.listed_by_detection)


def candidates(settings: FastSettings, base: CountSettings) -> list[CountSettings]:
    """Candidates of the cross-validation; one means that nothing is to be chosen."""
    if settings.time == "fixed":
        return [base]
    out = [base]
    if settings.rank == "auto" and settings.model == "auto":
        out = default_candidates(base, settings.max_rank)
    elif settings.rank == "auto":
        out = [replace(base, rank=rank) for rank in range(settings.max_rank + 1)]
    elif settings.model == "auto":
        other = (MODELS[name] for name in ("quasi", "log1p"))
        out += [replace(base, **{"scale": "raw", "dispersion": "quasi"} | model) for model in other]  # type: ignore[arg-type]
    # A logarithm has no zero of its own, so log1p has no empty sites.
    return [candidate for candidate in out if not (settings.occupancy and candidate.scale == "log1p")]


def presence_if_uncounted(folder: PanelFolder, settings: FastSettings) -> FastSettings:
    """Fit presence and absence where a species was found and never counted (all X): its counts are all 0 and say nothing."""
    if _uncounted(folder) and settings.model == "auto":
        return replace(settings, model="bernoulli")
    refuse_uncounted(folder, settings.model, "--model")
    return settings


def refuse_uncounted(folder: PanelFolder, chosen: str, option: str) -> None:
    """Raise ConfigError where a model of counts was chosen for a species that was found and never counted (all X)."""
    if _uncounted(folder) and chosen != "bernoulli":
        raise ConfigError(
            f"{folder.facts.species} was found on {folder.facts.n_detected} visits and counted on none of them (all are X): "
            f"what is left are zeros, of which {option} {chosen} would make a trend. Leave {option} out: presence and "
            "absence are fitted then."
        )


def _uncounted(folder: PanelFolder) -> bool:
    return folder.facts.birds == 0 and folder.facts.n_detected > 0


def _fixed(settings: FastSettings | SaemSettings) -> bool:
    return isinstance(settings, FastSettings) and settings.time == "fixed"


def plan_of(folder: PanelFolder, settings: FastSettings | SaemSettings) -> DataSpec:
    """What is wanted of the groups of a panel folder."""
    wanted = "none" if _fixed(settings) else settings.effort
    return DataSpec(
        species=folder.facts.species,
        months=folder.stamps,
        effort=effort_words(wanted),
        detections=isinstance(settings, FastSettings) and settings.model == "bernoulli",
        minimum=settings.minimum,
    )


def job_of(folder: PanelFolder, settings: FastSettings) -> JobSpec:
    """The whole job of a fit."""
    if not folder.facts.n_detected and not _fixed(settings):  # of a species never found nothing can be chosen
        settings = replace(
            settings,
            model="negbin" if settings.model == "auto" else settings.model,
            rank=0 if settings.rank == "auto" else settings.rank,
        )
    chosen = candidates(settings, base_settings(settings))
    return JobSpec(
        plan_of(folder, settings), chosen, folds=settings.folds, by=settings.folds_by, one_se=settings.one_se,
        bootstrap=settings.bootstrap, seed=settings.seed,
        structure=tried(settings, folder) if len(chosen) > 1 else None, average=settings.average,
    )  # fmt: skip


def federation_of(folder: PanelFolder, settings: FastSettings | SaemSettings) -> LocalFederation:
    """Groups of a panel folder and a hub, agreed on axes and effort terms."""
    plan = plan_of(folder, settings)
    held, at = folder.visits(effort=settings.effort != "none" and not _fixed(settings))
    return LocalFederation(
        held,
        at,
        len(folder.sites),
        plan,
        secrets=folder.secrets(),
        more=hash_json(asdict(settings)).encode(),
        own=isinstance(settings, FastSettings) and settings.own,
        duplicates=folder.several_sources,
        # chains of a method have the groups as workers
        most=None if isinstance(settings, SaemSettings) else MOST_PROGRAMS,
    )
