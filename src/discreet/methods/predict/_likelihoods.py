"""What a regression says of a target, given its linear predictor: the mean, a new outcome, and the log density of a known one.

All of them work by elements, with an axis of classes at the end of the predictors of classes.
"""

from __future__ import annotations

import abc
import math
from typing import Any

import numpy as np
from scipy.special import expit, gammaln, log_softmax, softmax, xlogy

from discreet._validate import choice

_LARGEST_LOG = 20.0


class Likelihood(abc.ABC):
    """The law of a target given its linear predictor, and a second parameter where it has one."""

    @abc.abstractmethod
    def mean(self, line: np.ndarray) -> np.ndarray:
        """The mean, or the probabilities of the classes."""

    @abc.abstractmethod
    def draw(self, rng: np.random.Generator, line: np.ndarray, also: Any) -> np.ndarray:
        """A new outcome of each."""

    @abc.abstractmethod
    def log_density(self, line: np.ndarray, y: np.ndarray, also: Any) -> np.ndarray:
        """The log density, or log probability, of a known outcome of each; NaN where it is missing, or no class."""


class _Bernoulli(Likelihood):
    def mean(self, line: np.ndarray) -> np.ndarray:
        return expit(line)

    def draw(self, rng: np.random.Generator, line: np.ndarray, also: Any) -> np.ndarray:
        del also
        return (rng.random(line.shape) < expit(line)).astype(np.int64)

    def log_density(self, line: np.ndarray, y: np.ndarray, also: Any) -> np.ndarray:
        del also
        with np.errstate(invalid="ignore"):  # of missing features
            found = -np.logaddexp(0.0, np.where(y > 0.5, -line, line))
        return np.where(np.isnan(y), np.nan, found)


class _Categorical(Likelihood):
    def mean(self, line: np.ndarray) -> np.ndarray:
        return softmax(line, axis=-1)

    def draw(self, rng: np.random.Generator, line: np.ndarray, also: Any) -> np.ndarray:
        del also
        return np.argmax(line + rng.gumbel(size=line.shape), axis=-1)

    def log_density(self, line: np.ndarray, y: np.ndarray, also: Any) -> np.ndarray:
        del also
        classes = np.arange(line.shape[-1])
        is_class = y[..., None] == classes
        found = np.where(is_class, log_softmax(line, axis=-1), 0.0).sum(axis=-1)
        return np.where(is_class.any(axis=-1), found, np.nan)


class _Poisson(Likelihood):
    def mean(self, line: np.ndarray) -> np.ndarray:
        return np.exp(np.minimum(line, _LARGEST_LOG))

    def draw(self, rng: np.random.Generator, line: np.ndarray, also: Any) -> np.ndarray:
        del also
        return rng.poisson(self.mean(line))

    def log_density(self, line: np.ndarray, y: np.ndarray, also: Any) -> np.ndarray:
        del also
        mean = self.mean(line)
        return xlogy(y, mean) - mean - gammaln(y + 1.0)


class _NegativeBinomial(Likelihood):
    """Of variance m + m^2 / k, where k is the second parameter."""

    def mean(self, line: np.ndarray) -> np.ndarray:
        return np.exp(np.minimum(line, _LARGEST_LOG))

    def draw(self, rng: np.random.Generator, line: np.ndarray, also: Any) -> np.ndarray:
        return rng.poisson(self.mean(line) * rng.gamma(np.broadcast_to(also, line.shape)) / also)

    def log_density(self, line: np.ndarray, y: np.ndarray, also: Any) -> np.ndarray:
        mean = self.mean(line)
        ways = gammaln(y + also) - gammaln(also) - gammaln(y + 1.0)
        return ways + xlogy(y, mean / (mean + also)) - also * np.log1p(mean / also)


class _Gaussian(Likelihood):
    """Of the standard deviation that is the second parameter."""

    def mean(self, line: np.ndarray) -> np.ndarray:
        return line

    def draw(self, rng: np.random.Generator, line: np.ndarray, also: Any) -> np.ndarray:
        return line + also * rng.standard_normal(line.shape)

    def log_density(self, line: np.ndarray, y: np.ndarray, also: Any) -> np.ndarray:
        return -0.5 * np.square((y - line) / also) - np.log(also) - 0.5 * math.log(2 * math.pi)


_LIKELIHOODS: dict[str, Likelihood] = {
    "bernoulli": _Bernoulli(),
    "categorical": _Categorical(),
    "poisson": _Poisson(),
    "negative_binomial": _NegativeBinomial(),
    "gaussian": _Gaussian(),
}


def likelihood_of(family: str) -> Likelihood:
    """The likelihood of that name.

    >>> float(likelihood_of("poisson").mean(np.zeros(1))[0])
    1.0
    """
    return _LIKELIHOODS[choice("family", family, tuple(_LIKELIHOODS))]
