"""A fitted count model as its owner sees it: sites, months, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from fedmiss.arrays import F64, I64, root_of
from fedmiss.errors import ConfigError
from fedmiss.federation.hub.state import MonthState, leading
from fedmiss.models.lowrank.choice import model_name
from fedmiss.models.lowrank.families import FAMILIES, SCALES, counted_family
from fedmiss.models.lowrank.occupancy import ChainPosterior, zero_inflated
from fedmiss.models.lowrank.own_lines import OwnLines
from fedmiss.models.lowrank.predictive import LEVEL, Law
from fedmiss.models.lowrank.settings import Auxiliary, CountSettings
from fedmiss.models.lowrank.theta import Fit, Theta
from fedmiss.models.lowrank.theta import moments as _moments
from fedmiss.notebook import card
from fedmiss.settings import kinds_checked

POINTS_ONLY = "only fits of --method fast with --time smooth know the errors of their cells."


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """Gaussian posteriors of the site and month coefficients.

    ``mu`` scalar; ``P`` (J, p), ``C`` (J, p, p) sites; ``T`` (L, p), ``D`` (L, p, p) months; p = 1 + r,
    one more where sites have slopes.
    ``tau`` (p,) prior variances of the sites' coefficients; ``prior`` (L, p) prior means and ``noise`` (p,) prior
    variances of the months'. ``common_sites``, ``common_months``: for each column of ``P`` and ``T`` errors
    (J, k), (L, k) that sites or months have in common, of their prior means, to multiply k standard normals; () where there
    are none, or none are known. ``C``, ``D`` are what each errs by itself.
    """

    mu: float
    P: F64
    C: F64
    T: F64
    D: F64
    tau: F64
    prior: F64
    noise: F64
    common_sites: tuple[F64, ...] = ()
    common_months: tuple[F64, ...] = ()

    def whole(self, site: slice | I64) -> tuple[F64, F64]:
        """Covariances of some sites and of all months, with the errors that they have in common."""
        C, D = self.C[site].copy(), self.D.copy()
        for cov, common in ((C, [errors[site] for errors in self.common_sites]), (D, self.common_months)):
            for a, errors in enumerate(common):
                cov[:, a, a] += (errors**2).sum(axis=1)
        return C, D

    def share_of_slopes(self, lines: OwnLines) -> F64:
        """By how much of a move of its prior mean each site's slope moves, (J,): C over its prior variance."""
        out: F64 = np.maximum(self.C[:, 1, 1] / (self.tau[1] + lines.more), 1e-9)
        return out

    def theta(self) -> Theta:
        """Posterior means as parameters of the low-rank model."""
        return Theta(self.mu, self.P[:, 0], self.T[:, 0], self.P[:, 1:], self.T[:, 1:])


def errors_of_sites(C: F64, tau: F64, F: F64, coefficients: F64, lines: OwnLines | None) -> tuple[F64, ...]:
    """Errors of the prior means B' f_j that sites have in common: ``Posterior.common_sites``.

    Parameters
    ----------
    C, tau : (J, p, p), (p,) posterior covariances and prior variances of all sites
    F : (J, k) features;  coefficients : (c, k, k) posterior covariances of B, of the effect (and slope)

    A site answers to a move of its prior mean by C / tau. The sites' mean is known from those that say something: their
    marginal likelihood has the curvature sum (1 - C / tau) / tau in it. () where sites are not random.
    """
    if np.isinf(tau).any():
        return ()
    out = [np.zeros((len(C), 0)) for _ in tau]
    for a, cov in enumerate(coefficients):
        own = lines.more if a == 1 and lines is not None else np.zeros(len(C))
        share = C[:, a, a] / (tau[a] + own)
        known = max(float((1.0 - share)[own == 0.0].sum()), 1.0)
        errors = np.column_stack([np.full(len(C), np.sqrt(tau[a] / known)), F @ root_of(cov)])
        out[a] = leading(share[:, None] * errors)
    return tuple(out)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CountFit:
    """A fitted count model.

    ``fit`` is the low-rank part with the history of the fit, ``aux`` the rest; ``dispersion`` is Pearson /
    residual degrees of freedom on visits; ``edf`` the effective number of parameters (trace of the block hat
    matrices); ``smear`` the factor of the back-transform, calibrated on the total of the observed counts.

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> p = fedmiss.simulate_panel(30, 24, 0.5, rank=0, seed=1, groups=2)
    >>> clubs = [p.group == k for k in (0, 1)]
    >>> groups = [fedmiss.Group.of(f"club {k}", p.site_index[c], p.month_index[c], p.y[c]) for k, c in enumerate(clubs)]
    >>> panel = fedmiss.GroupPanel.of(30, 24, groups)
    >>> fit = fedmiss.fit_counts(panel, fedmiss.CountSettings(rank=0))
    >>> fit.expected().shape
    (30, 24)
    """

    settings: CountSettings
    J: int
    L: int
    fit: Fit
    aux: Auxiliary
    dispersion: float
    edf: float
    n_counted: int
    smear: float = 1.0
    posterior: Posterior | None = None
    state: MonthState | None = None  # the hub's half of a variational fit
    presence: ChainPosterior | None = None  # of the sites, where they may be empty in some years
    year: I64 | None = None  # (L,) of every month, from 0: the columns of ``presence``
    lines: OwnLines | None = None  # where the sites' own lines end, where they have slopes

    def __repr__(self) -> str:
        how = "converged" if self.fit.converged else "not converged"
        law = model_name(self.settings)
        return f"CountFit(rank {self.settings.rank}, {law}, {self.J} sites x {self.L} months, {how})"

    def _repr_html_(self) -> str:
        """Show the model and how well it stands in a notebook."""
        settings = self.settings
        return card(
            "Fitted count model",
            {
                "model": model_name(settings),
                "rank": settings.rank,
                "sites x months": f"{self.J:,} x {self.L:,}",
                "visits with a count": self.n_counted,
                "dispersion (1: as the model says)": self.dispersion,
                "effective parameters": self.edf,
                "prior means follow": settings.features,
                "converged": bool(self.fit.converged),
            },
        )

    @property
    def fits(self) -> tuple[CountFit, ...]:
        """The fit as the mean of one, so that what takes a fit need not ask whether it is an average."""
        return (self,)

    @property
    def theta(self) -> Theta:
        """Parameters of the low-rank part: with ``slopes`` its first column is the sites' slopes and the line x."""
        return self.fit.theta

    @property
    def slopes(self) -> bool:
        """Whether every site has a slope of its own on the line x, the centred and scaled year."""
        return self.theta.rank > self.settings.rank and not self.settings.responses

    def expected(self, site: slice | I64 = slice(None), month: slice | I64 = slice(None)) -> F64:
        """Expected count (or detection probability) at standard effort, for a block of cells.

        Parameters
        ----------
        site, month : slices, or arrays (n,) of indices

        Returns
        -------
        (sites, months) of the block

        Raises
        ------
        ConfigError    a single index, one that is no whole number, or beyond the panel
        """
        for name, part, n in (("site", site, self.J), ("month", month, self.L)):
            if isinstance(part, slice):
                continue
            at = np.asarray(part)
            if at.ndim != 1 or (at.size and at.dtype.kind not in "iub"):
                raise ConfigError(
                    f"expected: {name} is {part!r} (must be a slice, or a list of indices as [0])."
                )
            if at.dtype.kind == "b":
                at = np.arange(at.size)  # a mask, as long as the axis
            if at.size and not -n <= at.min() <= at.max() < n:
                raise ConfigError(f"expected: {name} is {part!r} (must be below {n}, the number of {name}s).")
        if self.posterior is not None:
            family = counted_family(self.settings.family, self.settings.scale)
            eta = family.marginal(*moments(self.posterior, site, self.lines))[:, month]
            return to_counts(eta, self.settings, self.smear) * self.present(site)[:, month]
        return to_counts(self.theta.eta(site, month), self.settings, self.smear)

    def present(self, site: slice | I64 = slice(None), states: F64 | None = None) -> F64:
        """Probability (rows, L) that some sites were occupied; (1, L) of ones where no site may be empty.

        ``states`` (J, Y): drawn ones in the place of the probabilities.
        """
        if self.presence is None:
            return np.ones((1, self.L))
        assert self.year is not None
        out: F64 = (self.presence.present if states is None else states)[site][:, self.year]
        return out

    def interval(self, site: slice | I64 = slice(None), level: float = LEVEL) -> Intervals:
        """Intervals of the cells of some sites; see :class:`Intervals`."""
        return AverageFit((self,)).interval(site, level)


@dataclass(frozen=True, slots=True, eq=False)
class AverageFit:
    """The arithmetic mean of the expected counts of several fitted models, with equal weights; one alone is itself.

    ``fits``: the first is the one that cross-validation chose. Each is calibrated on the counted total, so the mean is too.
    """

    fits: tuple[CountFit, ...]

    def _repr_html_(self) -> str:
        """Show the models of the mean in a notebook."""
        return card(
            f"Mean of {len(self.fits)} fitted count models",
            {f"{i}": fit for i, fit in enumerate(self.fits, 1)},
        )

    @property
    def J(self) -> int:
        """Number of sites."""
        return self.fits[0].J

    @property
    def L(self) -> int:
        """Number of months."""
        return self.fits[0].L

    @property
    def settings(self) -> CountSettings:
        """Settings of the chosen fit."""
        return self.fits[0].settings

    def expected(self, site: slice | I64 = slice(None), month: slice | I64 = slice(None)) -> F64:
        """Expected count (or detection probability) at standard effort, for a block of cells."""
        out: F64 = np.mean([fit.expected(site, month) for fit in self.fits], axis=0)
        return out

    def present(self, site: slice | I64 = slice(None)) -> F64:
        """Probability that some sites were occupied; see :meth:`CountFit.present`."""
        return np.asarray(np.mean([fit.present(site) for fit in self.fits], axis=0))

    @property
    def law(self) -> Law:
        """Law of the count of one visit at standard effort, with the mean of the fits' parameters."""
        settings = self.settings
        sizes = [1.0 / fit.aux.size for fit in self.fits]  # 0 where there is none
        quasi = settings.dispersion == "quasi" and FAMILIES[settings.family].sized
        phis = [max(fit.aux.phi, fit.dispersion) if quasi else fit.aux.phi for fit in self.fits]
        observers = [
            1.0 / fit.aux.observers if fit.settings.observers and fit.aux.observers > 0 else 0.0
            for fit in self.fits
        ]
        law = FAMILIES[settings.family].law(
            phi=float(np.mean(phis)), inverse_size=float(np.mean(sizes)), observers=float(np.mean(observers))
        )
        return SCALES[settings.scale].law(law, self._smear)

    @property
    def _smear(self) -> float:
        """What the predictors do not hold of the calibration of totals: see ``Scale.shift``."""
        log = SCALES[self.settings.scale].log
        return float(np.mean([fit.smear for fit in self.fits])) if log else 1.0

    def moments(self, site: slice | I64 = slice(None)) -> tuple[F64, F64]:
        """Mean and variance of the predictor of the cells of some sites, (rows, L) each, calibration included.

        Of several fits those of their mixture. Where sites may be empty, they are those of an occupied one.

        Raises
        ------
        ConfigError    a fit has no posterior: algorithm 7 makes point estimates
        """
        scale, means, variances = SCALES[self.settings.scale], [], []
        for fit in self.fits:
            if fit.posterior is None:
                raise ConfigError(POINTS_ONLY)
            eta, var = moments(fit.posterior, site, fit.lines, whole=True)
            means.append(eta + scale.shift(fit.smear))
            variances.append(var)
        # Law of total variance: the mean of the fits' variances and the variance of their means.
        return np.mean(means, axis=0), np.mean(variances, axis=0) + np.var(means, axis=0)

    def draw(self, rng: np.random.Generator) -> Callable[[slice | I64], F64]:
        """Draw one of the fits, its sites and its months; return the predictor (rows, L) of some sites under the draw.

        The error of a site is common to its cells, that of a month to all sites; sites, and months, err in common too.
        :meth:`counts_at` and :meth:`draw_counts` make expected and drawn counts of it. An empty site has the predictor -inf.

        Raises
        ------
        ConfigError    a fit has no posterior
        """
        fit = self.fits[int(rng.integers(len(self.fits)))]
        posterior = fit.posterior
        if posterior is None:
            raise ConfigError(POINTS_ONLY)
        P, T = (
            mean + _normal(cov, rng) for mean, cov in ((posterior.P, posterior.C), (posterior.T, posterior.D))
        )
        of_sites, of_months = (
            [e @ rng.standard_normal(e.shape[1]) for e in common]
            for common in (posterior.common_sites, posterior.common_months)
        )
        for rows, common in ((P, of_sites), (T, of_months)):
            for a, errors in enumerate(common):
                rows[:, a] += errors
        base, shift = posterior.mu, SCALES[self.settings.scale].shift(fit.smear)
        states = None if fit.presence is None else fit.presence.draw(rng.random(fit.presence.came.shape))
        lines, changes, prior_mean = fit.lines, np.zeros((0, 0)), np.zeros(0)
        if lines is not None:
            changes = np.sqrt(posterior.tau[1] + lines.more)[:, None] * lines.path(
                rng.standard_normal((fit.J, lines.n_years))
            )
            prior_mean = (
                lines.mean + of_sites[1] / posterior.share_of_slopes(lines) if of_sites else lines.mean
            )

        def predictor(site: slice | I64) -> F64:
            eta: F64 = base + P[site][:, :1] + T[:, 0] + P[site][:, 1:] @ T[:, 1:].T
            if lines is not None:
                own = (P[site, 1] - prior_mean[site])[:, None] * lines.bend(site) + changes[site]
                eta = eta + own[:, lines.year]
            return (
                eta + shift
                if states is None
                else np.where(fit.present(site, states) > 0, eta + shift, -np.inf)
            )

        return predictor

    def draw_counts(self, eta: F64, rng: np.random.Generator) -> F64:
        """Draw the count of one visit at each predictor; zero where the site is empty."""
        empty = np.isneginf(eta)
        return np.where(empty, 0.0, self.law.draw(np.where(empty, 0.0, eta), rng))

    def counts_at(self, eta: F64) -> F64:
        """Expected counts at predictors that hold the calibration, as :meth:`moments` and :meth:`draw` give them."""
        return to_counts(eta, self.settings, self._smear)

    @kinds_checked
    def interval(self, site: slice | I64 = slice(None), level: float = LEVEL) -> Intervals:
        """Intervals of the cells of some sites; see :class:`Intervals`."""
        if not 0 < level < 1:  # a level in percent would give limits of NaN without a word
            raise ConfigError(f"the level is {level:g} (must lie between 0 and 1, as 0.95).")
        eta, var = self.moments(site)
        if any(fit.presence is not None for fit in self.fits):
            return Intervals(*zero_inflated(self.law, self.counts_at, eta, var, self.present(site), level))
        half = ndtri(0.5 + level / 2) * np.sqrt(var)
        lower, upper = self.law.interval(eta, var, level)
        return Intervals(lower, upper, self.counts_at(eta - half), self.counts_at(eta + half))


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Intervals of the cells of some sites, (rows, L) each.

    ``lower``, ``upper`` hold the count of one visit at standard effort (errors of sites and months, observers, and the
    scatter of counts); ``expected_lower``, ``expected_upper`` the expected count (errors of sites and months only).
    Variances of the model are taken as known, but for those between regions.
    """

    lower: F64
    upper: F64
    expected_lower: F64
    expected_upper: F64


def coefficient_names(columns: int, *, slopes: bool) -> list[tuple[str, str]]:
    """Names of the coefficients after the effects, of a site and of a month: the slope and the line x, then the factors."""
    factors = [(f"u{k + 1}", f"v{k + 1}") for k in range(columns - slopes)]
    return [("s", "x"), *factors] if slopes else factors


def to_counts(eta: F64, settings: CountSettings, smear: float = 1.0) -> F64:
    """Back-transform the linear predictor to birds."""
    family = counted_family(settings.family, settings.scale)
    return SCALES[settings.scale].counts(family.mean(eta), smear)


def _normal(covariances: F64, rng: np.random.Generator) -> F64:
    """Normal draws (n, p) of mean 0 and these covariances (n, p, p), some of which may be 0."""
    # By eigenvectors: a covariance may be singular (a known column), which Cholesky refuses.
    values, vectors = np.linalg.eigh(covariances)
    z = rng.standard_normal(values.shape) * np.sqrt(np.maximum(values, 0.0))
    out: F64 = np.einsum("npq,nq->np", vectors, z)
    return out


def moments(
    posterior: Posterior, site: slice | I64, lines: OwnLines | None = None, *, whole: bool = False
) -> tuple[F64, F64]:
    """Mean and variance of the predictor (rows of ``site`` x L) of every cell, observed or not.

    ``whole``: with the errors that sites, and months, have in common.
    """
    q = posterior
    C, D = q.whole(site) if whole else (q.C[site], q.D)
    eta, var = _moments(q.mu, q.P[site], C, q.T, D)
    if lines is None:
        return eta, var
    further, more = lines.moved(q.P[site], q.C[site], q.T, q.tau, site)
    if whole and q.common_sites:
        # An error e of the prior mean slope moves s by share e, and s - m, which bends, by (share - 1) e.
        x, bend = q.T[:, 1], lines.bend(site)[:, lines.year]
        own = np.sqrt((q.common_sites[1][site] ** 2).sum(axis=1))[:, None]
        of_mean = own / q.share_of_slopes(lines)[site][:, None]
        more += (own * (x + bend) - of_mean * bend) ** 2 - (own * x) ** 2
    return eta + further, var + more
