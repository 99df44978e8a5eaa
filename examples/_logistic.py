"""The common part of both logistic examples: fit privately several times, fit without privacy, print both."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import discreet as dp

DELTA = 1e-5


@dataclasses.dataclass(frozen=True)
class Settings:
    """Public choices of a fit."""

    rate: float
    num_steps: int
    clipping_norm: float
    learning_rate: float


def model(x, y=None):
    """Bayesian logistic regression."""
    w = numpyro.sample("w", dist.Normal(0, 4).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def scores(x, y, probabilities) -> tuple[float, float]:
    """Accuracy and area under the ROC curve."""
    return float(np.mean((probabilities > 0.5) == (y > 0.5))), float(
        roc_auc_score(y, probabilities)
    )


def private(data, epsilon: float, settings: Settings, runs: int) -> tuple[float, float]:
    """Mean accuracy and AUC over `runs` private fits of the posterior predictive mean."""
    x, y, x_test, y_test = data
    plan = dp.PrivacyPlan.calibrate(
        epsilon=epsilon,
        delta=DELTA,
        num_records=len(x),
        num_steps=settings.num_steps,
        sampling=dp.PoissonSampling(settings.rate),
        clipping_norm=settings.clipping_norm,
    )
    optim = numpyro.optim.Adam(settings.learning_rate)
    dpsvi = dp.DPSVI(
        model,
        AutoNormal(
            model, init_loc_fn=numpyro.infer.init_to_value(values={"w": np.zeros(x.shape[1])})
        ),
        optim,
        plan=plan,
    )
    results = []
    for _ in range(runs):
        result = dpsvi.run(dp.random.key(), x, y, progress_bar=False)
        w = np.asarray(result.posterior(dp.random.key(), 200)["w"])
        results.append(scores(x_test, y_test, np.mean(1 / (1 + np.exp(-x_test @ w.T)), axis=1)))
    accuracy, auc = np.mean(results, axis=0)
    print(
        f"  private, epsilon = {result.statement.epsilon:.4g} (noise multiplier {plan.noise_multiplier:.3f}, "
        f"{runs} runs): accuracy {accuracy:.4f}, AUC {auc:.4f}"
    )
    return accuracy, auc


def non_private(data) -> tuple[float, float]:
    """Scikit-learn's logistic regression on the same columns."""
    x, y, x_test, y_test = data
    fitted = LogisticRegression(max_iter=2000, fit_intercept=False).fit(x, y)
    accuracy, auc = scores(x_test, y_test, fitted.predict_proba(x_test)[:, 1])
    print(f"  without privacy (scikit-learn): accuracy {accuracy:.4f}, AUC {auc:.4f}")
    return accuracy, auc
