"""Settings of the count model, and its parameters beside the low-rank part."""

from __future__ import annotations

from dataclasses import dataclass

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError
from fedmiss.models.lowrank.families import FAMILIES, POISSON, SCALES, family_of
from fedmiss.models.lowrank.structure import FEATURES
from fedmiss.settings import kinds_checked


@kinds_checked
@dataclass(frozen=True, slots=True)
class CountSettings:
    """Settings of a count model.

    Attributes
    ----------
    family : ``poisson``, ``gaussian`` or ``bernoulli``
    scale : ``raw``, or ``log1p`` (Gaussian family on log(1 + count))
    rank : number of factors r
    penalty : None: the variances of the factors are estimated (variational EM). A number is the ridge lambda of a fit that
        algorithm 7 made; the count model has none
    effects : with mu, a, b; without them the model is the paper's theta = U V', of algorithm 7
    time : ``smooth``: effects of months have a prior; ``fixed``: the plain site and time model of
        :mod:`fedmiss.models.site_time`, a maximum likelihood fit with one free effect for each time
    season : months have a line, seasonal and smooth prior (needs a calendar)
    slopes : with ``season``, every site has a slope on the year of its own
    features : what the prior means of sites' effects and slopes follow, of ``FEATURES``: how often a site was visited (the
        effect only), its covariates, its region, a smooth over the places, how many birds it has (the slope only)
    responses : features of sites that every month (in a community: every species) responds to with coefficients of its own
    observers : with observer effects, kept inside the groups
    learning : with ``observers``, those who began after the first year may count fewer at first, and later observers more
    occupancy : sites may be empty in some years: a chain of two states for each (:mod:`fedmiss.models.lowrank.occupancy`)
    dispersion : ``quasi`` (Var = phi mu), ``negbin``, or ``none`` (phi = 1)
    inverse_size : 1 / size of the negative binomial, held at this value; None estimates it
    calibrate : Poisson family: whether fitted counts are scaled so that their total is the counted one. Set it to False
        where sites without any bird were left out: the other sites were selected by their counts, so their total is biased
    max_sweeps : most rounds of each rank

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.CountSettings(rank=1, dispersion="negbin").check()
    """

    family: str = "poisson"
    scale: str = "raw"
    rank: int = 2
    penalty: float | None = None
    effects: bool = True
    time: str = "smooth"
    season: bool = True
    slopes: bool = True
    features: tuple[str, ...] = ()
    responses: tuple[str, ...] = ()
    observers: bool = False
    learning: bool = False
    occupancy: bool = False
    dispersion: str = "quasi"
    inverse_size: float | None = None
    calibrate: bool = True
    max_sweeps: int = 500
    seed: int = 0

    def check(self) -> None:
        """Raise ConfigError on impossible settings."""
        family = family_of(self.family)
        if self.scale not in SCALES:
            raise ConfigError(f"the scale {self.scale!r} is unknown; choose {' or '.join(SCALES)}.")
        needs = SCALES[self.scale].needs
        if needs not in (None, family):
            raise ConfigError(f"the {self.scale} scale needs the {needs.name} family, not {self.family}.")
        if self.dispersion not in ("quasi", "negbin", "none"):
            raise ConfigError(f"the dispersion {self.dispersion!r} is unknown; choose quasi, negbin or none.")
        if self.dispersion == "negbin" and not family.sized:
            able = " or ".join(family.name for family in FAMILIES.values() if family.sized)
            raise ConfigError(f"negbin dispersion needs the {able} family, not {self.family}.")
        if wrong := [feature for feature in (*self.features, *self.responses) if feature not in FEATURES]:
            raise ConfigError(f"the feature {wrong[0]!r} is unknown; choose some of {', '.join(FEATURES)}.")
        if self.responses and (self.features or self.season):
            raise ConfigError(
                "responses of months go with season=False, and without features that the prior follows."
            )
        if self.inverse_size is not None and (self.dispersion != "negbin" or not self.inverse_size >= 0):
            raise ConfigError(
                f"1 / size is held at {self.inverse_size:g}: that needs negbin dispersion, and a number of 0 or more."
            )
        if self.learning and not self.observers:
            raise ConfigError("a learning curve of observers needs effects of observers (observers=True).")
        if self.occupancy and (
            not family.counts or self.scale != "raw" or self.time == "fixed" or not self.season
        ):
            raise ConfigError(
                "occupancy needs the poisson family on the raw scale, and smooth effects of a calendar's months."
            )
        if not 0 <= self.rank < 1 << 31:
            raise ConfigError(f"the rank is {self.rank} (must be 0 or more, and below 2^31).")
        if self.max_sweeps < 1:
            raise ConfigError(f"max_sweeps is {self.max_sweeps} (must be 1 or more).")
        if self.time not in ("smooth", "fixed"):
            raise ConfigError(f"the time effects {self.time!r} are unknown; choose smooth or fixed.")
        if self.time == "fixed" and (family is not POISSON or self.rank or self.observers):
            raise ConfigError("fixed time effects need the poisson family, rank 0, and no observers.")
        if self.penalty is not None or not self.effects:
            raise ConfigError(
                "the count model has effects, and estimates the variances of its factors. A ridge of your own, and the "
                "model without effects, are those of algorithm 7: FitSettings(method='fedmissem', penalty=...)."
            )


@dataclass(frozen=True, slots=True)
class Auxiliary:
    """Everything but the low-rank model: estimated once, then refined or held fixed.

    ``kappa`` (K,) effort coefficients; ``observer`` and ``observer_var`` (n_observers,) effects of each group that was
    solved and their variances, private (:func:`~fedmiss.federation.group.visits.unite`); ``size`` of the negative binomial
    (inf for Poisson); ``phi`` the dispersion that enters the fit; ``observers`` ridge on them in units of phi.
    """

    kappa: F64
    observer: tuple[F64, ...]
    size: float
    phi: float
    observers: float
    edf: float = 0.0  # effective parameters of effort and observers
    observer_var: tuple[F64, ...] = ()
