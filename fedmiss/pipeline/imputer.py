"""``SiteMonthImputer``: the count model in scikit-learn's manner (needs the extra ``sklearn``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from fedmiss.arrays import F64, Bool
from fedmiss.errors import EngineError
from fedmiss.settings import kinds_checked

try:
    from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
    from sklearn.metrics import d2_tweedie_score
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:  # pragma: no cover - the extra is in every developer's environment
    raise EngineError(
        "SiteMonthImputer needs the extra 'sklearn', which is not installed. Install fedmiss[sklearn]."
    ) from error

from fedmiss.federation.calls import cross_validate, fit_counts
from fedmiss.federation.results import AverageFit, CountFit
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.rng import rng_for

_ROUNDS = 60
_MOST = 4  # largest rank that auto tries
_PARTS = 5


class SiteMonthImputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Fill the missing counts of a site x month matrix by a low-rank model of counts.

    ``fit`` learns the months: their effects and factors. ``transform`` finds the effect and factors of every row at those
    months, by penalised maximum likelihood, and fills the row's NaN with the expected counts; observed counts stay as
    they are. A row that was not in the fit is filled the same way; a row without any count gets the mean site.

    Parameters
    ----------
    rank : int or "auto", default 2
        Factors beside the effects of sites and months; 0 is TRIM's model 3 with shrunken effects. ``auto`` takes the one of
        0 to 4 that predicts left-out counts best (five parts), or a smaller one within one standard error of it.
    dispersion : {"negbin", "quasi", "none"}, default "negbin"
        Law of the counts: negative binomial, or Poisson with and without a dispersion factor.

    Attributes
    ----------
    fit_ : CountFit
        The fitted model; ``fit_.expected()`` is the expected count of every cell of the training matrix, posterior
        uncertainty included.
    rank_ : int
        The rank of the fitted model: as given, at most one less than rows or months, or as chosen.
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

    def __init__(self, rank: int | Literal["auto"] = 2, dispersion: str = "negbin") -> None:
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
        most = min(X.shape) - 1
        if self.rank != "auto" and not isinstance(self.rank, int | np.integer):
            raise ValueError(f"rank is {self.rank!r}; give a number of factors, or 'auto'.")
        ranks = range(min(_MOST, most) + 1) if self.rank == "auto" else (min(int(self.rank), most),)
        candidates = [CountSettings(rank=rank, dispersion=self.dispersion, season=False) for rank in ranks]
        for settings in candidates:
            settings.check()
        panel = GroupPanel.of(
            # A matrix names no observers: each row stands for one.
            X.shape[0],
            X.shape[1],
            [Group.of("all", site, month, X[site, month], observer=site)],
        )
        best = (
            candidates[0]
            if len(candidates) == 1 or site.size < _PARTS
            else cross_validate(panel, candidates, one_se=True).best
        )
        self.rank_: int = best.rank
        self.fit_: CountFit = fit_counts(panel, best)
        return self

    def transform(self, X: Any) -> F64:
        """Return ``X`` with every NaN filled by its expected count, (n_sites, n_months) float64."""
        X, seen = self._seen(X)
        eta, _ = self._rows(X, seen)
        return np.where(seen, X, np.exp(eta))

    @kinds_checked
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
        X, seen = self._seen(X)
        eta, spread = self._rows(X, seen)
        law, rng = AverageFit((self.fit_,)).law, rng_for(random_state, "draws of an imputer")
        out = np.empty((number, *X.shape))
        for i in range(number):
            out[i] = np.where(seen, X, law.draw(eta + spread(rng), rng))
        return out

    def score(self, X: Any, y: Any = None) -> float:
        """Return how well counts are predicted that were hidden from their row: D^2, at most 1.

        Every count of ``X`` is hidden once, in five parts drawn by a fixed seed, and predicted from the other counts of its
        row and the fitted months. D^2 is the share of the Poisson deviance of the hidden counts that the predictions
        explain (``sklearn.metrics.d2_tweedie_score``, power 1): 1 for perfect ones, 0 for the mean count everywhere. The
        rows should not be those of the fit: ``GridSearchCV`` takes care of that.

        Parameters
        ----------
        X : (n_sites, n_months) array or DataFrame; NaN where nobody counted
        y : ignored

        Raises
        ------
        ValueError
            Fewer than two counts, or no difference between the counts, so that there is nothing to explain.

        Examples
        --------
        >>> import numpy as np
        >>> from fedmiss import SiteMonthImputer
        >>> X = np.outer([10.0, 20.0, 40.0, 80.0], [3.0, 6.0, 9.0])
        >>> SiteMonthImputer(rank=0, dispersion="none").fit(X).score(X) > 0.9
        True
        """
        X, seen = self._seen(X)
        counts = X[seen]
        if counts.size < 2 or counts.min() == counts.max():
            raise ValueError(
                f"X has {counts.size} count(s) that differ from each other in nothing, so no score exists."
            )
        part = np.full(X.shape, -1)
        part[seen] = rng_for(0, "parts of a score").permutation(counts.size) % _PARTS
        predicted = np.empty_like(X)
        for number in range(min(_PARTS, counts.size)):
            left = seen & (part != number)
            eta, _ = self._rows(X, left)
            predicted[part == number] = np.exp(eta[part == number])
        return float(d2_tweedie_score(counts, predicted[seen], power=1))

    def _checked(self, X: Any, *, reset: bool) -> F64:
        if isinstance(X, np.ma.MaskedArray):  # scikit-learn would count what the mask hides
            X = np.ma.filled(X.astype(np.float64), np.nan)
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

    def _seen(self, X: Any) -> tuple[F64, Bool]:
        """A matrix for a fitted imputer, and which of its cells have a count."""
        check_is_fitted(self)
        X = self._checked(X, reset=False)
        return X, np.isfinite(X)

    def _rows(self, X: F64, seen: Bool) -> tuple[F64, Callable[[np.random.Generator], F64]]:
        """Log expected counts of rows at the fitted months, and what draws their errors.

        Newton steps on a row's coefficients, all rows at once; the errors are those of the curvature at the end.
        """
        fit, y = self.fit_, np.where(seen, X, 0.0)
        theta = fit.theta
        rows = np.column_stack([np.ones(fit.L), theta.V])  # (L, p)
        # What is fixed of the predictor: level and months. A row's own coefficients are a and u.
        base = theta.mu + theta.b
        own = np.column_stack([theta.a, theta.U])
        # prior variances: those of the fitted sites
        precision = 1.0 / np.maximum((own**2).mean(axis=0), 1e-3)
        size = fit.aux.size
        phi = max(fit.dispersion if self.dispersion == "quasi" else 1.0, 1.0)
        coef, H = np.zeros((y.shape[0], rows.shape[1])), np.zeros(0)
        for _ in range(_ROUNDS):
            mu = np.exp(np.clip(base + coef @ rows.T, -50.0, 50.0))
            # Weight of the negative binomial's score, 1 / (1 + mu / size), over phi for the quasi-Poisson; 0 in holes.
            weights = np.where(seen, 1.0 / (1.0 + mu / size) if np.isfinite(size) else 1.0, 0.0) / phi
            score = (weights * (y - mu)) @ rows - coef * precision
            H = np.einsum("il,lp,lq->ipq", weights * mu, rows, rows) + np.diag(precision)
            step = np.linalg.solve(H, score[:, :, None])[:, :, 0]
            # At most 2 in any coefficient: from far below, a Newton step overshoots by e^step.
            step *= np.minimum(1.0, 2.0 / np.maximum(np.abs(step).max(axis=1, keepdims=True), 1e-12))
            coef = coef + step
            if np.abs(step).max(initial=0.0) < 1e-9:
                break
        # Draws of the Laplace posterior of each row, N(coef, H^-1).
        root = np.linalg.cholesky(np.linalg.inv(H))

        def spread(rng: np.random.Generator) -> F64:
            errors: F64 = np.einsum("ipq,iq->ip", root, rng.standard_normal(coef.shape)) @ rows.T
            return errors

        return np.log(fit.smear) + np.clip(base + coef @ rows.T, -50.0, 50.0), spread

    def __sklearn_tags__(self) -> Any:
        """Say what the estimator takes: counts, with holes."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = []
        return tags
