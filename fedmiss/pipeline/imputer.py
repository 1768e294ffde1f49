"""``SiteMonthImputer``: the count model in scikit-learn's manner (needs the extra ``sklearn``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedmiss.arrays import F64
from fedmiss.errors import EngineError

try:
    from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:  # pragma: no cover - the extra is in every developer's environment
    raise EngineError(
        "SiteMonthImputer needs the extra 'sklearn', which is not installed. Install fedmiss[sklearn]."
    ) from error

from fedmiss.federation.local import fit_counts
from fedmiss.federation.results import AverageFit, CountFit
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.rng import rng_for

__all__ = ["SiteMonthImputer"]

_ROUNDS = 60


class SiteMonthImputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Fill the missing counts of a site x month matrix by a low-rank model of counts.

    ``fit`` learns the months: their effects and factors. ``transform`` finds the effect and factors of every row at those
    months, by penalised maximum likelihood, and fills the row's NaN with the expected counts; observed counts stay as
    they are. A row that was not in the fit is filled the same way; a row without any count gets the mean site.

    Parameters
    ----------
    rank : int, default 2
        Factors beside the effects of sites and months; 0 is TRIM's model 3 with shrunken effects.
    dispersion : {"negbin", "quasi", "none"}, default "negbin"
        Law of the counts: negative binomial, or Poisson with and without a dispersion factor.

    Attributes
    ----------
    fit_ : CountFit
        The fitted model; ``fit_.expected()`` is the expected count of every cell of the training matrix, posterior
        uncertainty included.
    n_features_in_ : int
        Number of months.
    feature_names_in_ : ndarray of str
        Names of the months, when ``X`` was a DataFrame.

    Raises
    ------
    ValueError
        Negative or infinite counts, no count at all, another number of months than in the fit.

    Examples
    --------
    >>> import numpy as np
    >>> from fedmiss import SiteMonthImputer
    >>> X = np.outer([1.0, 2.0, 4.0, 8.0], [3.0, 6.0, 9.0])
    >>> X[0, 1] = np.nan
    >>> filled = SiteMonthImputer(rank=0, dispersion="none").fit_transform(X)
    >>> bool(4 < filled[0, 1] < 8)
    True
    """

    def __init__(self, rank: int = 2, dispersion: str = "negbin") -> None:
        self.rank = rank
        self.dispersion = dispersion

    def fit(self, X: Any, y: Any = None) -> SiteMonthImputer:
        """Learn from a matrix of counts.

        Parameters
        ----------
        X : (n_sites, n_months) array or DataFrame; NaN where nobody counted
        y : ignored
        """
        X = self._checked(X, reset=True)
        site, month = np.nonzero(np.isfinite(X))
        if not site.size:
            raise ValueError("X has no count at all (every cell is NaN), so there is nothing to fit.")
        if X.max(initial=0.0, where=np.isfinite(X)) == 0.0:
            raise ValueError("every count in X is 0, so no ratio between months or sites can be learned.")
        settings = CountSettings(
            rank=min(int(self.rank), min(X.shape) - 1), dispersion=self.dispersion, season=False
        )
        settings.check()
        panel = GroupPanel.of(
            X.shape[0], X.shape[1], [Group.of("all", site, month, X[site, month], observer=site)]
        )
        self.fit_: CountFit = fit_counts(panel, settings)
        return self

    def transform(self, X: Any) -> F64:
        """Return ``X`` with every NaN filled by its expected count, (n_sites, n_months) float64."""
        check_is_fitted(self)
        X = self._checked(X, reset=False)
        seen = np.isfinite(X)
        eta, _ = self._rows(np.where(seen, X, 0.0), seen)
        return np.where(seen, X, np.exp(eta))

    def draw(self, X: Any, number: int = 20, random_state: int = 0) -> F64:
        """Return ``number`` completed copies of ``X``, (number, n_sites, n_months): multiple imputation.

        A row's coefficients are drawn around their estimate, with the errors that its counts leave, then a count for every
        NaN; observed counts stay as they are. The months are taken as known.

        Raises
        ------
        ValueError
            ``number`` below 1.

        Examples
        --------
        >>> import numpy as np
        >>> from fedmiss import SiteMonthImputer
        >>> X = np.outer([1.0, 2.0, 4.0, 8.0], [3.0, 6.0, 9.0])
        >>> X[0, 1] = np.nan
        >>> imputer = SiteMonthImputer(rank=0, dispersion="none").fit(X)
        >>> imputer.draw(X, 5).shape
        (5, 4, 3)
        """
        check_is_fitted(self)
        if number < 1:
            raise ValueError(f"number is {number}; draw 1 or more copies.")
        X = self._checked(X, reset=False)
        seen = np.isfinite(X)
        eta, spread = self._rows(np.where(seen, X, 0.0), seen)
        law, rng = AverageFit((self.fit_,)).law, rng_for(random_state, "draws of an imputer")
        out = np.empty((number, *X.shape))
        for i in range(number):
            out[i] = np.where(seen, X, law.draw(eta + spread(rng), rng))
        return out

    def _checked(self, X: Any, *, reset: bool) -> F64:
        X = validate_data(
            self,
            X,
            reset=reset,
            dtype=np.float64,
            ensure_all_finite="allow-nan",
            ensure_min_samples=2 if reset else 1,
        )
        if np.nanmin(X, initial=0.0) < 0:
            raise ValueError(
                f"Negative values in data passed to {type(self).__name__}: counts are 0 or more."
            )
        if reset and X.shape[1] < 2:
            raise ValueError(
                f"Found array with {X.shape[1]} feature(s); months are compared, so 2 are needed."
            )
        return np.asarray(X, dtype=np.float64)

    def _rows(self, y: F64, seen: Any) -> tuple[F64, Callable[[np.random.Generator], F64]]:
        """Log expected counts of rows at the fitted months, and what draws their errors.

        Newton steps on a row's coefficients, all rows at once; the errors are those of the curvature at the end.
        """
        fit = self.fit_
        theta = fit.theta
        z = np.column_stack([np.ones(fit.L), theta.V])  # (L, p)
        base = theta.mu + theta.b
        own = np.column_stack([theta.a, theta.U])
        precision = 1.0 / np.maximum(
            (own**2).mean(axis=0), 1e-3
        )  # prior variances: those of the fitted sites
        size = fit.aux.size
        phi = max(fit.dispersion if self.dispersion == "quasi" else 1.0, 1.0)
        coef, H = np.zeros((y.shape[0], z.shape[1])), np.zeros(0)
        for _ in range(_ROUNDS):
            mu = np.exp(np.clip(base + coef @ z.T, -50.0, 50.0))
            w = np.where(seen, 1.0 / (1.0 + mu / size) if np.isfinite(size) else 1.0, 0.0) / phi
            score = (w * (y - mu)) @ z - coef * precision
            H = np.einsum("il,lp,lq->ipq", w * mu, z, z) + np.diag(precision)
            step = np.linalg.solve(H, score[:, :, None])[:, :, 0]
            step *= np.minimum(1.0, 2.0 / np.maximum(np.abs(step).max(axis=1, keepdims=True), 1e-12))
            coef = coef + step
            if np.abs(step).max(initial=0.0) < 1e-9:
                break
        root = np.linalg.cholesky(np.linalg.inv(H))

        def spread(rng: np.random.Generator) -> F64:
            errors: F64 = np.einsum("ipq,iq->ip", root, rng.standard_normal(coef.shape)) @ z.T
            return errors

        return np.log(fit.smear) + np.clip(base + coef @ z.T, -50.0, 50.0), spread

    def __sklearn_tags__(self) -> Any:
        """Say what the estimator takes: counts, with holes."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = []
        return tags
