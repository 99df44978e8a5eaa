"""The model in a text file with a distribution for each column: a mixture, from lines such as `Age: Poisson`."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import discreet as dp
from discreet._validate import near

KINDS = {
    "Normal": ("real", "count", "date"),
    "Poisson": ("count",),
    "Bernoulli": ("binary",),
    "Categorical": ("categorical", "ordered", "binary"),
}


def text_model(
    path: Path, schema: "dp.tables.Schema", components: int
) -> tuple["dp.tables.Schema", Callable[..., Any], Callable[..., Any]]:
    """The schema, model and guide of a mixture with a distribution for each column, from lines such as `Age: Poisson`."""
    from numpyro.infer import init_to_uniform
    from numpyro.infer.autoguide import AutoNormal

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"the model file {path} cannot be read as text: check the path") from None
    described = {column.name: column for column in schema.columns}
    families = {}
    for number, line in enumerate(lines, start=1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        name, _, written = (part.strip() for part in line.rpartition(":"))
        family = written.title()
        where = f"{path}, line {number}"
        if not name:
            raise ValueError(f"{where}: write COLUMN: DISTRIBUTION, for example Age: Poisson")
        if family not in KINDS:
            meant = near(family, KINDS) or f"choose {', '.join(KINDS)}"
            raise ValueError(f"{where}: the distribution {written} is not known: {meant}")
        if name not in described:
            meant = near(name, described) or "describe it, or leave out the line"
            raise ValueError(f"{where}: the schema does not describe the column {name}: {meant}")
        if described[name].kind not in KINDS[family]:
            raise ValueError(
                f"{where}: {family} is for columns of kind {' or '.join(KINDS[family])}, and {name} is described "
                f"as {described[name].kind}: change one of them"
            )
        families[name] = family
    if not families:
        raise ValueError(f"{path} describes no column: write lines such as Age: Poisson")
    schema = dataclasses.replace(
        schema, columns=tuple(described[name] for name in families), target=None, impossible=()
    )
    model = mixture(schema.columns, families, components)
    # Away from the point where all components are the same.
    return schema, model, AutoNormal(model, init_loc_fn=init_to_uniform(radius=1))


def mixture(
    columns: "tuple[dp.tables.Column, ...]", families: Mapping[str, str], components: int
) -> Callable[..., Any]:
    """The NumPyro model of raw columns: components with independent columns, whose priors are scaled by the public bounds."""
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist

    def each(name: str, prior: Any) -> Any:
        return numpyro.sample(name, prior.expand([components]).to_event(1))

    def family(column: "dp.tables.Column") -> Callable[[Any], Any]:
        """The column's distribution in some of the components."""
        name = column.name
        kind = families[column.name]
        if kind == "Bernoulli":
            probs = each(f"{name}_probs", dist.Beta(1.0, 1.0))
            return lambda part: dist.Bernoulli(probs[part])
        if kind == "Categorical":
            shares = each(f"{name}_probs", dist.Dirichlet(jnp.ones(len(column.categories))))
            return lambda part: dist.Categorical(shares[part])
        low, high = column.limits
        middle = (low + high) / 2
        half = (high - low) / 2
        if kind == "Poisson":
            # In units in which a record's gradient is of about the same size as another column's.
            unit = math.sqrt(middle)
            rate = middle * jnp.exp(each(f"{name}_log_rate", dist.Normal(0.0, unit)) / unit)
            return lambda part: dist.Poisson(rate[part])
        loc = middle + half * each(f"{name}_loc", dist.Normal(0.0, 1.0))
        scale = half * each(f"{name}_scale", dist.LogNormal(-1.0, 1.0))
        return lambda part: dist.Normal(loc[part], scale[part])

    def model(x: Any = None) -> Any:
        weights: Any = numpyro.sample("weights", dist.Dirichlet(jnp.ones(components)))
        priors = [family(column) for column in columns]
        gone = [
            each(f"{column.name}_na_prob", dist.Beta(2.0, 2.0))
            if column.missing == "indicator"
            else None
            for column in columns
        ]
        with numpyro.plate("rows", 1 if x is None else x.shape[0]):
            if x is None:
                part = numpyro.sample("component", dist.CategoricalProbs(weights))
                cells = []
                for column, prior, absent in zip(columns, priors, gone, strict=True):
                    cell = 1.0 * numpyro.sample(f"cell {column.name}", prior(part))
                    if absent is not None:
                        missing = numpyro.sample(
                            f"missing {column.name}", dist.BernoulliProbs(absent[part])
                        )
                        cell = jnp.where(missing == 1, jnp.nan, cell)
                    cells.append(cell)
                return jnp.stack(cells, axis=-1)
            score = jnp.log(weights)
            for i, (column, prior, absent) in enumerate(zip(columns, priors, gone, strict=True)):
                cell = x[:, i, None]
                value = jnp.nan_to_num(cell)
                here = prior(slice(None)).log_prob(
                    value if families[column.name] == "Normal" else value.astype(int)
                )
                if absent is not None:
                    here = jnp.where(jnp.isnan(cell), jnp.log(absent), jnp.log1p(-absent) + here)
                score = score + here
            numpyro.factor("row", jax.nn.logsumexp(score, axis=-1))
        return x

    return model
