"""`discreet demo`: a bundled table, fitted privately and not, side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import discreet as dp
from discreet._validate import require
from discreet.cli import _options as options
from discreet.cli._report import facts_in, print_statement
from discreet.cli._run import fit_and_write, joined
from discreet.cli._terminal import refusing, say, say_json

if TYPE_CHECKING:
    import numpy as np


# Public bounds: round numbers that such measurements of cell nuclei stay within, not the extremes of this table.
BOUNDS = {
    "radius": ((5, 30), (0, 3), (5, 40)),
    "texture": ((5, 40), (0, 5), (10, 50)),
    "perimeter": ((40, 200), (0, 25), (50, 260)),
    "area": ((100, 2_600), (0, 600), (100, 4_500)),
    "smoothness": ((0.05, 0.2), (0, 0.04), (0.05, 0.25)),
    "compactness": ((0, 0.4), (0, 0.15), (0, 1.2)),
    "concavity": ((0, 0.5), (0, 0.4), (0, 1.5)),
    "concave points": ((0, 0.25), (0, 0.06), (0, 0.3)),
    "symmetry": ((0.1, 0.35), (0, 0.08), (0.1, 0.7)),
    "fractal dimension": ((0.04, 0.1), (0, 0.03), (0.05, 0.25)),
}
TARGET = "benign"
HELD_OUT = 0.2
DELTA = 1e-5
STEPS = 500
RATE = 0.2
LEARNING_RATE = 0.05
BOUNDS_ARE_PUBLIC = "The bounds of the features, round numbers written in the code of the demo."
TABLE_IS_PUBLIC = (
    "The settings of this demo were chosen on this table, and accuracy is computed without noise: this is allowed only because "
    "the table is public."
)


@refusing
def demo(
    epsilon: Annotated[float, typer.Option(help="Privacy budget ε.")] = 1.0,
    seed: options.Seed = None,
    out: options.Out = Path("discreet-demo"),
    distributed: options.Distributed = False,
    coordinator: options.Coordinator = None,
    num_processes: options.NumProcesses = None,
    process_id: options.ProcessId = None,
    as_json: options.AsJson = False,
) -> None:
    """Fit a bundled medical table privately and see what it costs.

    Logistic regression on scikit-learn's breast-cancer table: 569 people, 30 measurements, malignant or benign. Fits four fifths
    at ε = 1 and prints the accuracy on the last fifth, beside that of a fit without privacy. The table is public, so it may be
    used in this way.

    `discreet demo --epsilon 0.5 --out somewhere`
    """
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    with joined(distributed, coordinator, num_processes, process_id) as members:
        with members.together():
            if members.first and not may_overwrite(out / "statement.json"):
                raise ValueError(f"{out} contains the statement of a fit: choose another --out")
            train, test = load()
            plan = options.plan_of(
                num_records=train.num_records,
                epsilon=epsilon,
                delta=DELTA,
                num_steps=STEPS,
                sampling=options.sampling_of("poisson", rate=RATE, batch_size=None, num_records=train.num_records),
                relation=None,
            )
        fitted = fit_and_write(
            out,
            dp.models.logistic_regression,
            plan,
            train,
            complete=lambda statement: statement.with_public(BOUNDS_ARE_PUBLIC).with_notes(TABLE_IS_PUBLIC),
            learning_rate=LEARNING_RATE,
            seed=seed,
            draws=1_000,
            progress_bar=False,
            processes=members,
        )
    if not members.first:
        fitted.leave()
        return
    statement, files = fitted.statement, fitted.files
    logits = fitted.samples["intercept"][:, None] + fitted.samples["weights"] @ test.x.T
    reference = LogisticRegression(max_iter=1_000).fit(train.x, train.y)
    scores = {
        "private": score(np.mean(1 / (1 + np.exp(-logits)), axis=0), test),
        # scikit-learn's, which protects nobody
        "non_private": score(reference.predict_proba(test.x)[:, 1], test),
    }
    if as_json:
        content = {"scores": scores, "statement": statement.to_dict(), "files": [str(file) for file in files]}
        say_json("demo", content)
        fitted.leave()
        return
    size = f"{train.num_records} people fitted, {test.num_records} held out"
    say(f"Logistic regression of {TARGET} on {train.x.shape[1]} measurements; {size}.")
    say()
    _print_scores(scores, statement.epsilon)
    say()
    print_statement(statement, files)
    fitted.leave()


def may_overwrite(path: Path) -> bool:
    """True if there is no statement yet, or one of this demo: a fit's statement documents its spending."""
    return not path.exists() or BOUNDS_ARE_PUBLIC in facts_in(path).get("public", [])


def load() -> tuple["dp.tables.Records", "dp.tables.Records"]:
    """The bundled table, encoded by the public bounds: the part to fit and the held-out part."""
    for package in ("pyarrow", "sklearn"):
        require(package, extra="tables", what="The demo")
    import numpy as np
    import pyarrow
    from sklearn.datasets import load_breast_cancer
    from sklearn.utils import Bunch

    bundle = load_breast_cancer()
    assert isinstance(bundle, Bunch)
    names = [str(name) for name in bundle["feature_names"]]
    columns = [dp.tables.Column(name=name, kind=dp.tables.Kind.REAL, bounds=bounds_of(name)) for name in names]
    columns.append(dp.tables.Column(name=TARGET, kind=dp.tables.Kind.BINARY, categories=("0", "1")))
    cells = dict(zip(names, np.asarray(bundle["data"]).T, strict=True)) | {TARGET: bundle["target"].astype(str)}
    # A fixed shuffle: the split is part of the demo's definition and has nothing to do with privacy.
    order = np.random.default_rng(0).permutation(len(bundle["target"]))
    held_out = int(HELD_OUT * len(order))
    schema = dp.tables.Schema(columns=tuple(columns), target=TARGET)
    parts = (order[held_out:], order[:held_out])
    train, test = (dp.tables.encode(pyarrow.table(cells).take(part), schema) for part in parts)
    return train, test


def bounds_of(name: str) -> tuple[float, float]:
    """The public bounds of a feature, whose name is "mean X", "X error" or "worst X".

    >>> bounds_of("radius error")
    (0.0, 3.0)
    """
    kind = next(i for i, word in enumerate(("mean ", " error", "worst ")) if word in name)
    low, high = BOUNDS[name.removeprefix("mean ").removeprefix("worst ").removesuffix(" error")][kind]
    return float(low), float(high)


def score(probabilities: "np.ndarray", test: "dp.tables.Records") -> dict[str, float]:
    """Accuracy and area under the curve of probabilities."""
    import numpy as np
    from sklearn.metrics import roc_auc_score

    assert test.y is not None
    accuracy = np.mean((probabilities > 0.5) == (test.y > 0.5))
    return {"accuracy": float(accuracy), "auc": float(roc_auc_score(test.y, probabilities))}


def _print_scores(scores: dict[str, dict[str, float]], epsilon: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("on the held-out part", "accuracy", "area under the curve")
    for heading, part in (
        (f"private, ε = {epsilon:.3g}", "private"),
        ("without privacy (scikit-learn)", "non_private"),
    ):
        table.add_row(heading, f"{scores[part]['accuracy']:.3f}", f"{scores[part]['auc']:.3f}")
    Console().print(table)
