"""Facts in the manifests of panel, fit and imputed folders and of joint results, with types.

A step makes such an object and writes ``as_results()`` into the manifest; whoever reads the folder gets it back by ``of``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Self, TypedDict, get_type_hints

from fedmiss.errors import InputError
from fedmiss.parsing import misfit

_SOMETIMES: dict[str, bool] = {"sometimes": True}  # not in the manifest where it is None or empty


def or_nan(value: float | None) -> float:
    """Return the number, or NaN for one that is not known: JSON has no NaN."""
    return float("nan") if value is None else value


def counted_by(family: str) -> str:
    """Column of ``cells`` with the visits that a model uses: found or not is known of all, with a number or without (X)."""
    return "n_visits" if family == "bernoulli" else "n_counted"


class SpeciesRow(TypedDict):
    """What the manifest of a records folder says of one species."""

    species: str
    common_name: str | None
    records: int
    x: int
    explicit_zeros: int
    zeros: int
    visits: int
    zeros_allowed: bool


class LedgerLine(TypedDict, total=False):
    """What crossed between groups and hub in one stage, or in all."""

    exchanges: int
    bytes_up: int
    bytes_down: int


class LedgerLines(LedgerLine, total=False):
    """The ledger of a job: its sums, the line of each stage, and messages by kind."""

    stages: dict[str, LedgerLine]
    messages: dict[str, int]


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of one kind of folder."""

    @classmethod
    def of(cls, results: Mapping[str, Any], where: object = "the folder") -> Self:
        """Read the part ``results`` of a manifest; other entries are ignored.

        Raises InputError: a fact without a default is not there.
        """
        lacking = [
            item.name
            for item in fields(cls)
            if item.default is item.default_factory is MISSING and item.name not in results
        ]
        if lacking:
            raise InputError(
                f"the manifest of {where} does not say {', '.join(lacking)}; make the folder again."
            )
        if fault := cls.misfit(results):
            raise InputError(f"the manifest of {where} has a wrong entry: {fault}; make the folder again.")
        return cls(**{item.name: results[item.name] for item in fields(cls) if item.name in results})

    @classmethod
    def misfit(cls, results: Mapping[str, Any]) -> str:
        """Which fact is not of its type, in words; a blank when all are."""
        hints = get_type_hints(cls)
        known = (
            (results[item.name], item.metadata.get("form", hints[item.name]), item.name)
            for item in fields(cls)
            if item.name in results
        )
        return next((fault for one in known if (fault := misfit(*one))), "")

    def as_results(self) -> dict[str, Any]:
        """Return the facts as the manifest keeps them."""
        values = {item: getattr(self, item.name) for item in fields(self)}
        return {
            item.name: value
            for item, value in values.items()
            if value not in (None, {}) or not item.metadata.get("sometimes")
        }


@dataclass(frozen=True, slots=True)
class PanelFacts(Facts):
    """Facts of a panel folder.

    ``effort`` is the share of visits that tell each effort column; ``groups`` the counts of each group's folder;
    ``period`` is year where the counts have no months; ``share_complete`` the share of complete checklists,
    ``n_observers`` is 0 where the records name none, ``implied_zeros`` whether some lists imply zeros: lists of all species
    do, counts of one species have their own.
    """

    species: str
    common_name: str
    n_sites: int
    n_months: int
    first_month: str
    last_month: str
    n_observers: int
    n_visits: int
    n_counted: int
    n_detected: int
    n_zeros: int
    n_cells_observed: int
    birds: int
    effort: dict[str, float]
    groups: dict[str, dict[str, int]]
    period: str = "month"
    share_complete: float | None = field(default=None, metadata=_SOMETIMES)
    implied_zeros: bool | None = field(default=None, metadata=_SOMETIMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts(Facts):
    """Facts of one fitted model: what it is, and what its tables of coefficients need to be read.

    ``mu`` is the level on the link scale, ``phi`` the dispersion that enters the fit, ``negbin_size`` None for other models,
    ``edf`` the effective degrees of freedom, ``smear`` the factor of expected counts (``lognormal``: with a log scale it is
    that of exp(eta + variance / 2)), ``features`` what the expectation for a site follows, ``abundance`` what the slope
    on x rises by where a site has e times the birds, 0 where that switched itself off, ``occupancy`` the probabilities
    that a site is occupied in the first year, gained and lost from one year to the next; empty where no site may be empty.
    """

    family: str
    scale: str
    model: str
    effects: bool
    dispersion_model: str
    rank: int
    penalty: float | None
    mu: float
    phi: float
    dispersion: float | None
    negbin_size: float | None
    edf: float | None
    smear: float
    site_variances: list[float] | None
    month_variances: list[float] | None
    converged: bool
    stop_reason: str
    rounds: int
    time: str = "smooth"
    slopes: bool = False
    features: list[str] = field(default_factory=list)
    abundance: float = 0.0
    occupancy: list[float] = field(default_factory=list)
    lognormal: bool = False

    @classmethod
    def of(cls, results: Mapping[str, Any], where: object = "the folder") -> Self:
        """Read them as :meth:`Facts.of` does; an InputError also for a log1p fit whose factor goes with exp(eta)."""
        facts = super(ModelFacts, cls).of(results, where)
        if facts.scale == "log1p" and facts.site_variances and not facts.lognormal:
            raise InputError(
                f"{where} holds a log1p fit of an earlier version, which left out of expected counts how uncertain the "
                "logarithm of a cell is: sites that nobody visited came out too low. Fit again."
            )
        return facts


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts(ModelFacts):
    """Facts of both a fit and a joint result: the chosen model, those averaged with it, messages between groups and hub.

    ``members`` are the facts of the averaged fits, the chosen one first; ``h_norm`` is the length of the last move;
    ``site_covariates`` the names of the covariates that the expectation for a site follows, ``explained`` the share of the
    variance between sites that each kind of feature explains, ``trials`` the steps of the structure that were tried. What is
    None by default is written by some methods only. ``learning``: what a new observer counts less at first, ``skill``:
    what observers count more whose visits are a year later, both on the link scale.
    """

    species: str
    method: str
    standard_effort: str
    observer_effects: bool
    observer_sd: float | None
    n_groups: int
    n_counted: int
    n_months: int
    bootstrap: int
    members: list[dict[str, Any]] = field(default_factory=list)
    learning: float | None = field(default=None, metadata=_SOMETIMES)
    skill: float | None = field(default=None, metadata=_SOMETIMES)
    objective: float | None = None
    h_norm: float | None = None
    participation: float = 1.0
    compressor: str = "identity"
    advice: str = ""
    site_covariates: list[str] = field(default_factory=list)
    explained: dict[str, float] = field(default_factory=dict)
    trials: list[dict[str, Any]] = field(default_factory=list)
    cv_summary: list[dict[str, Any]] = field(default_factory=list)
    exchanges: int | None = field(default=None, metadata=_SOMETIMES)
    bytes_up: int | None = field(default=None, metadata=_SOMETIMES)
    bytes_down: int | None = field(default=None, metadata=_SOMETIMES)
    ledger: dict[str, Any] = field(default_factory=dict, metadata={"sometimes": True, "form": LedgerLines})
    withheld_visits: int | None = field(default=None, metadata=_SOMETIMES)
    duplicate_visits: int | None = field(default=None, metadata=_SOMETIMES)
    # groups that answered: those of one person that share sites are one
    n_solved: int | None = field(default=None, metadata=_SOMETIMES)
    # True where one observer made nearly all visits, so that replicates weigh sites
    sites_redrawn: bool | None = field(default=None, metadata=_SOMETIMES)

    @classmethod
    def of_members(cls, members: Sequence[ModelFacts], **more: Any) -> Self:
        """Put together the facts of the averaged fits, the chosen one first, and the other facts by name."""
        said = [member.as_results() for member in members]
        return cls(members=said, **said[0], **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitFacts(JobFacts):
    """Facts of a fit folder.

    ``large_site``, of ``fast``: whether a site with more than half of all birds has a slope of its own. What else is None by
    default is of ``fedmissem`` and ``saem``.
    """

    effort: dict[str, float]
    n_visits: int
    n_sites: int
    n_cells_observed: int
    common_name: str = ""
    objective_start: float | None = field(default=None, metadata=_SOMETIMES)
    workers: int | None = field(default=None, metadata=_SOMETIMES)
    overdispersion: float | None = field(default=None, metadata=_SOMETIMES)
    large_site: bool | None = field(default=None, metadata=_SOMETIMES)
    standard_errors: dict[str, float] | None = field(default=None, metadata=_SOMETIMES)

    @property
    def errors_known(self) -> bool:
        """Whether the errors of the cells are known, and not their points alone."""
        return self.method == "fast" and self.time != "fixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class JointFacts(JobFacts):
    """Facts of a joint result between organisations, which each of them writes.

    ``terms``, ``blanks`` and ``kappa`` are the effort terms, those with a column for blanks, and their coefficients;
    ``seconds`` the time of the job, ``replayed`` exchanges that came from a journal.
    """

    terms: list[str]
    blanks: list[str]
    kappa: list[float]
    n_sites_all: float
    regions: list[str]
    notes: list[str]
    seconds: float | None = field(default=None, metadata=_SOMETIMES)
    replayed: int | None = field(default=None, metadata=_SOMETIMES)


@dataclass(frozen=True, slots=True)
class ImputedFacts(Facts):
    """Facts of an imputed folder; ``imputed_share`` is the part of the total in cells without a count.

    ``occupied``: expected number of occupied sites in the first and the last year, None where no site may be empty.
    """

    species: str
    cells: int
    observed_cells: int
    total: float
    imputed_share: float
    standard_effort: str
    occupied: list[float] | None = field(default=None, metadata=_SOMETIMES)


@dataclass(frozen=True, slots=True)
class RecordsFacts(Facts):
    """Facts of a records folder that steps read; its manifest holds more."""

    n_records: int
    n_checklists: int
    n_zero_ok: int
    species: list[SpeciesRow]


# Names of the whole panel, and of its visited sites, among the regions of draws.parquet.
ALL, VISITED = "all", "visited sites"

FACTS: dict[str, type[Facts]] = {
    "records": RecordsFacts, "panel": PanelFacts, "fit": FitFacts, "imputed": ImputedFacts, "joint": JointFacts,
}  # fmt: skip
