"""The settings of ``fedmiss fit``, one class for each method; the command line makes its options of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fedmiss.errors import ConfigError
from fedmiss.models.lowrank.structure import FEATURES, effort_words
from fedmiss.settings import Setting, Settings, checked, definitions, setting

MODELS = {
    "quasi": {"family": "poisson", "dispersion": "quasi"},
    "negbin": {"family": "poisson", "dispersion": "negbin"},
    "log1p": {"family": "gaussian", "scale": "log1p"},
    "gaussian": {"family": "gaussian", "scale": "raw"},
    "bernoulli": {"family": "bernoulli"},
}

# what more there is to say where a method lacks a setting
WHY = {
    ("minimum", "fedmissem"): "It sends a number for each site and month, behind which one site stands.",
    ("bootstrap", "fedmissem"): "It makes no intervals.",
    ("bootstrap", "saem"): "It makes no intervals.",
    ("model", "saem"): "It has one model, Poisson with log-normal overdispersion.",
    ("penalty", "fast"): "It estimates the variances of the factors.",
    ("penalty", "saem"): "It estimates the variances of the factors.",
}

Rank = int | Literal["auto"]

# what several methods have
METHOD = Setting(
    "fast (count model), fedmissem (the paper's Algorithm 7), or saem (count model by chains: a check of fast on "
    "small panels; rank auto is 0).",
    among=("fast", "fedmissem", "saem"),
)
MODEL = Setting("auto, quasi, negbin, log1p, gaussian or bernoulli; not saem.", among=("auto", *MODELS))
RANK = Setting("auto (by cross-validation) or a number.", low=0)
EFFORT = Setting("auto, none, or any of duration,distance,observers; not fedmissem.")
OBSERVERS = Setting("fast, saem: observer effects, kept inside groups (fast: tried with --structure auto).")
MINIMUM = Setting(
    "fast, saem: minimum number of a group's sites in the sums of a month (groups that share sites are one group); "
    "visits of months with fewer sites are withheld.",
    low=0,
)
SEED = Setting("Seed of everything random.", low=0, high=2**63 - 1)  # it travels in 64 bits
ROUNDS = Setting("fedmissem, saem: rounds; by default 2,000 and 900.", low=1)
PARTICIPATION = Setting("fedmissem, saem: probability that a group answers a round.", above=0, high=1)


class FitSettings(Settings):
    """Settings of ``fedmiss fit``: called with a ``method``, it makes the settings of that method.

    Each method has a class of its own, which holds what the method uses. A setting of another method is refused, and so is
    one that does nothing beside the others that were given.

    Effects of observers are tried with the structure, or named (``observers=True``).

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.FitSettings(rank=1, bootstrap=100).bootstrap
    100
    """

    __slots__ = ()
    called: ClassVar[str] = ""

    def __new__(cls, method: str = "", **given: Any) -> Any:
        """Make an object of the method's class; the class of a method makes objects of itself."""
        if cls is not FitSettings:
            if method in definitions(cls)["method"][1].among and method != cls.called:
                raise ConfigError(
                    f"{cls.__name__} are the settings of --method {cls.called}, not of {method!r}."
                )
            return object.__new__(cls)
        known = {kind.called: kind for kind in METHODS}
        method = str(checked(method or FastSettings.called, *definitions(FitSettings)["method"], "--method"))
        asked = {name: value for name, value in given.items() if value is not None}
        _refuse_others(known[method], asked)
        for name, why in _idle(asked):
            flag = _flag(name).replace("--", "--no-" if asked[name] is False else "--")
            raise ConfigError(f"{flag} does nothing here: {why}. Leave {flag} out.")
        return object.__new__(known[method])


@dataclass(frozen=True, slots=True, kw_only=True)
class FastSettings(FitSettings):
    """Settings of ``--method fast``, the default: the count model with cross-validation and bootstrap."""

    called: ClassVar[str] = "fast"

    method: str = setting("fast", METHOD)
    model: str = setting("auto", MODEL)
    rank: Rank = setting("auto", RANK)
    time: str = setting(
        "smooth",
        "fast: smooth, or fixed: the plain site and time model (Poisson, no effort), which is TRIM's model 3.",
        among=("smooth", "fixed"),
    )
    effort: str = setting("auto", EFFORT)
    observers: bool = setting(False, OBSERVERS)
    occupancy: bool = setting(
        False, "fast: sites may be empty in some years, and be gained and lost (tried with --structure auto)."
    )
    folds: int = setting(5, "fast: folds of the cross-validation.", low=2, high=1000)
    folds_by: str = setting(
        "auto",
        "fast: what a fold holds out: cell (site x month), block (site x year), visit, observer, or auto: cells or "
        "blocks, like the gaps of the panel.",
        among=("auto", "cell", "block", "visit", "observer"),
    )
    one_se: bool = setting(False, "fast: prefer the smallest rank within one standard error.")
    average: bool = setting(
        True, "fast: average the ranks that cross-validation cannot distinguish from the best rank."
    )
    structure: str = setting(
        "auto",
        "fast: what the expectation for a site follows: a comma list of visits (their number), covariates, regions, "
        "smooth (over places), abundance (their trends only), times, effort (of visits; levels only); none; auto: each of "
        "these, observers, occupancy and slopes of sites are taken where they predict held-out data clearly better, regions "
        "unless clearly worse, abundance with slopes, times and effort always.",
    )
    max_rank: int = setting(4, "fast: largest rank tried.", low=0)
    bootstrap: int = setting(
        200, "fast: bootstrap replicates for the intervals; 0 for none.", low=0, high=100_000
    )
    seed: int = setting(0, SEED)
    minimum: int = setting(0, MINIMUM)
    own: bool = setting(
        False, "fast: keep what each group needs for a report about its own sites (fedmiss own)."
    )

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        named_features(self.structure)
        effort_words(self.effort)


@dataclass(frozen=True, slots=True, kw_only=True)
class FedMissEMSettings(FitSettings):
    """Settings of ``--method fedmissem``: algorithm 7 of the paper."""

    called: ClassVar[str] = "fedmissem"

    method: str = setting("fedmissem", METHOD)
    model: str = setting("auto", MODEL)
    rank: Rank = setting("auto", RANK)
    penalty: float | None = setting(
        None, "fedmissem: ridge on the factors; by default 1 / number of groups.", low=0
    )
    rounds: int | None = setting(None, ROUNDS)
    gamma: float | None = setting(
        None, "fedmissem: step of the server; by default p/(1+omega), less with minibatches.", above=0, high=1
    )
    alpha: float | None = setting(
        None, "fedmissem: step size of the memories; by default 1/(1+omega).", above=0, high=1
    )
    levels: int = setting(16, "fedmissem: levels of the random dithering; 0 sends floats.", low=0)
    compressor: str = setting(
        "",
        "fedmissem: the compressor, an unbiased one, by name and numbers, for example natural or randk:k=200. Default: "
        "dithering with --levels.",
    )
    participation: float = setting(1.0, PARTICIPATION)
    batch: int | None = setting(None, "fedmissem: cells per round and group; by default all.", low=1)
    batch_sum: str = setting(
        "full",
        "fedmissem, with --batch: full: the sum over a minibatch of b of a group's m cells counts m/b times; paper: as "
        "it is (lines 8 to 13 of algorithm 7), so that groups count by their minibatches.",
        among=("full", "paper"),
    )
    seed: int = setting(0, SEED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaemSettings(FitSettings):
    """Settings of ``--method saem``: the count model by chains."""

    called: ClassVar[str] = "saem"

    method: str = setting("saem", METHOD)
    rank: Rank = setting("auto", RANK)
    effort: str = setting("auto", EFFORT)
    observers: bool = setting(False, OBSERVERS)
    minimum: int = setting(0, MINIMUM)
    rounds: int | None = setting(None, ROUNDS)
    participation: float = setting(1.0, PARTICIPATION)
    seed: int = setting(0, SEED)

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        effort_words(self.effort)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImputeSettings(Settings):
    """Settings of ``fedmiss impute``.

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.ImputeSettings(draws=20).draws
    20
    """

    draws: int = setting(
        0, "Draws of the whole matrix, for multiple imputation; 0 for none.", low=0, high=1000
    )
    seed: int = setting(0, "Seed of the draws.", low=0)

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.seed and not self.draws:
            raise ConfigError(
                "--seed does nothing here: nothing is drawn. Give --draws, or leave --seed out."
            )


METHODS: tuple[type[FitSettings], ...] = (FastSettings, FedMissEMSettings, SaemSettings)
FitSettings.take(METHODS)


def named_features(structure: str) -> tuple[str, ...]:
    """Features of sites that a setting names; none for ``auto`` and ``none``."""
    if structure in ("auto", "none"):
        return ()
    names = [feature.strip() for feature in structure.split(",")]
    wrong = [name for name in names if name not in FEATURES]
    if wrong or len(set(names)) < len(names):
        raise ConfigError(
            f"--structure is {structure!r} (must be auto, none, or a comma list of {', '.join(FEATURES)}, each once)."
        )
    return tuple(feature for feature in FEATURES if feature in names)


def sent(settings: FedMissEMSettings) -> str:
    """What a method sends, in words."""
    return settings.compressor or (f"dithering, {settings.levels} levels" if settings.levels else "identity")


def _flag(name: str) -> str:
    return definitions(FitSettings)[name][1].flag(name)


def _refuse_others(kind: type[FitSettings], asked: Mapping[str, object]) -> None:
    """Refuse a setting that the method does not have and another one has."""
    for name in asked:
        if name in definitions(kind) or name not in definitions(FitSettings):
            continue
        flag = _flag(name)
        has = " or ".join(method.called for method in METHODS if name in definitions(method))
        why = WHY.get((name, kind.called), "")
        raise ConfigError(
            f"--method {kind.called} does not use {flag}{'. ' + why if why else '.'} Leave {flag} out, or choose --method "
            f"{has}."
        )


def _idle(asked: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Settings of the method that do nothing beside the others, each with the reason."""
    fixed, ranked = asked.get("time") == "fixed", asked.get("rank", "auto") != "auto"
    chosen = asked.get("model", "auto") != "auto"
    one_model = "there is one model, and nothing is chosen by cross-validation"
    no_draws = asked.get("own") is True and asked.get("bootstrap") == 0
    reasons: list[tuple[str, bool, str]] = [
        ("structure", fixed, "--time fixed has one effect for each site, and nothing that it follows"),
        ("max_rank", fixed or ranked, "the rank is given, and none is tried"),
        *(
            (name, fixed or (ranked and chosen), one_model)
            for name in ("folds", "folds_by", "one_se", "average")
        ),
        *((name, ranked, "the rank is given, and none is chosen") for name in ("one_se", "average")),
        ("own", no_draws, "a group's own report needs --bootstrap"),
        ("average", asked.get("one_se") is True, "with --one-se one rank is taken"),
        ("levels", bool(asked.get("compressor")), "--compressor says what is sent"),
        ("batch_sum", "batch" not in asked, "without --batch all visits are used"),
    ]
    return ((name, why) for name, idle, why in reasons if idle and name in asked)
