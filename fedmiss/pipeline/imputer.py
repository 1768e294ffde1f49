"""``SiteMonthImputer``: the count model in scikit-learn's manner (needs the extra ``sklearn``)."""

from __future__ import annotations

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
from fedmiss.federation.results import CountFit
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings

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
        expected = self._rows(np.where(seen, X, 0.0), seen)
        return np.where(seen, X, expected)

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

    def _rows(self, y: F64, seen: Any) -> F64:
        """Expected counts of rows at the fitted months: Newton steps on a row's coefficients, all rows at once."""
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
        coef = np.zeros((y.shape[0], z.shape[1]))
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
        out: F64 = fit.smear * np.exp(np.clip(base + coef @ z.T, -50.0, 50.0))
        return out

    def __sklearn_tags__(self) -> Any:
        """Say what the estimator takes: counts, with holes."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = []
        return tags
