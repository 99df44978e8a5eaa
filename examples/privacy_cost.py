"""Draw what privacy costs, from the results that are kept in docs/papers/: README's figure.

    python examples/privacy_cost.py [--out docs/privacy-cost.svg]

Left: test accuracy against ε on Adult (39,073 records). Right: how the cost grows where there are
fewer records. Needs matplotlib (`pip install 'discreet[plot]'`).
"""

import argparse
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAPERS = ROOT / "docs" / "papers"
RULE = "DPVI, discreet's rule"


def adult() -> tuple[list[float], list[float], float]:
    """ε, accuracy, and the accuracy without privacy."""
    rows = json.loads((PAPERS / "uai_adult.json").read_text(encoding="utf-8"))["rows"]
    points = sorted((row["epsilon_pld"], row["mean"]) for row in rows if row["method"] == RULE)
    (exact,) = [row["mean"] for row in rows if row["method"] == "not private"]
    return [epsilon for epsilon, _ in points], [accuracy for _, accuracy in points], exact


def hierarchical() -> dict[int, tuple[list[float], list[float], float]]:
    """The same with AUC, for each number of records."""
    rows = json.loads((PAPERS / "hierarchical.json").read_text(encoding="utf-8"))["rows"]
    rows = [row for row in rows if row["guide"] == "listing 4" and row["num_steps"] == 100_000]
    found: dict[int, tuple[list[float], list[float], float]] = {}
    for number in sorted({row["num_records"] for row in rows}):
        means: dict[float | None, list[float]] = {}
        for row in rows:
            if row["num_records"] == number:
                means.setdefault(row["epsilon"], []).append(row["auc"])
        exact = means.pop(None)
        points = sorted(
            (epsilon, sum(values) / len(values)) for epsilon, values in means.items() if epsilon
        )
        found[number] = [x for x, _ in points], [y for _, y in points], sum(exact) / len(exact)
    return found


def draw(path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {"svg.hashsalt": "discreet", "font.size": 9, "lines.markersize": 4, "lines.linewidth": 1.2}
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 2.8), layout="constrained")
    epsilon, accuracy, exact = adult()
    left.plot(epsilon, accuracy, "o-", color="#1b6e78", label="discreet")
    left.axhline(exact, color="#555555", linestyle="--", label="without privacy")
    left.set(title="Adult, 39,073 records", ylabel="test accuracy", ylim=(0.78, 0.86))
    left.legend(loc="lower right", frameon=False)
    shades = ("#000000", "#1b6e78", "#5aa7b0", "#999999")
    for (number, (epsilon, auc, exact)), marker, color in zip(
        hierarchical().items(), "v^so", shades, strict=True
    ):
        right.plot(
            epsilon,
            [exact - value for value in auc],
            f"{marker}-",
            color=color,
            label=f"{number:,} records",
        )
    right.set(
        title="Hierarchical regression, fewer records", ylabel="AUC lost to privacy", ylim=(0, None)
    )
    right.legend(frameon=False)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xticks(epsilon if axes is right else [0.01, 0.03, 0.1, 0.3, 1.0])
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.set_xlabel("ε")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "privacy-cost.svg", help="(%(default)s)"
    )
    chosen = parser.parse_args().out
    draw(chosen)
    print(f"{chosen} written.")
