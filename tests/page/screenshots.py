"""Pictures of every page, to be looked at: `make screenshots` writes them to screenshots/, which git ignores.

Each page in light and dark at a desktop's width, on a telephone, and as a PDF of what a printer
gets. The figures are made up.
"""

import base64
import dataclasses
import datetime
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

import discreet as dp
from discreet.interfaces.page import (
    budget_of,
    course_of,
    description_of,
    panels_of_draws,
    profile_pairs,
    statement_page,
)
from discreet.tabular.tables import Column, Kind, Missing, Schema

from .browser import CHROMIUM, Browser
from .made_up import PLAN, description_facts, result_of, statement_of

SCHEMA = Schema(
    columns=(
        Column(name="age", kind=Kind.REAL, bounds=(17, 90), step=1),
        Column(
            name="income", kind=Kind.REAL, bounds=(0, 200_000), unit="€", missing=Missing.INDICATOR
        ),
        Column(name="visits", kind=Kind.COUNT, bounds=(0, 40)),
        Column(name="smoker", kind=Kind.BINARY, categories=("no", "yes")),
    ),
    target="smoker",
)
DAY = datetime.date(2026, 11, 22)
SIZES = {"desktop": (1280, 1), "phone": (390, 2)}


def pages(folder: Path) -> dict[str, str]:
    """Every kind of page, by its name."""
    ledger = dp.Ledger.create(
        folder / "messy.ledger", dataset="messy 2026", epsilon=3.0, delta=1e-4, unit="one person"
    )
    ledger.debit(PLAN, delta=1e-5, method="OnePosteriorSample", unit="one person")
    receipt = ledger.debit(PLAN, delta=1e-5, method="DPSVI", unit="one person with up to 5 rows")
    statement = dataclasses.replace(
        statement_of(unit=dp.report.Unit("patient", 5)), receipt=receipt
    )
    rng = np.random.default_rng(0)
    names = ["age", "income", "education=degree", "smoker=yes", "systolic is missing"]
    draws = {
        "intercept": rng.normal(1, 0.2, 400),
        "weights": rng.normal([1.2, -0.4, 0.7, 0.1, -1], 0.3, (400, 5)),
    }
    common = {
        "pairs": profile_pairs(PLAN, statement),
        "contact": "data protection officer, dpo@example.org",
    }
    report = {
        **common,
        "course": course_of(result_of(statement, name="weights")),
        "panels": panels_of_draws(draws, names),
        "budget": budget_of(ledger, statement),
    }
    broken = statement.with_violations("bounds of these columns were taken from the data: income")
    drifting = {**report["course"], "rest": {"kind": "drifting", "from": 150}}
    return {
        "report": statement_page(statement, **report),
        "report-drifting": statement_page(statement, **{**report, "course": drifting}),
        "broken": statement_page(broken, dataset="messy 2026", day=DAY),
        "description": statement_page(
            statement,
            description=description_of(description_facts("Occupation")),
            dataset="messy 2026",
            day=DAY,
            **common,
        ),
        "strong-epsilon": statement_page(
            statement_of(dataclasses.replace(PLAN, noise_multiplier=0.7))
        ),
    }


def main(out: Path) -> None:
    """Write the pages, their pictures and PDFs."""
    if CHROMIUM is None:
        sys.exit("No Chromium is installed (Debian: apt install chromium): no pictures are made.")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    profile = Path(tempfile.mkdtemp(prefix="discreet-chromium-"))
    browser = Browser(profile)
    try:
        for name, page in pages(profile).items():
            file = out / f"{name}.html"
            file.write_text(page, encoding="utf-8")
            for size, (width, scale) in SIZES.items():
                for theme in ("light", "dark") if size == "desktop" else ("light",):
                    browser.call(
                        "Emulation.setDeviceMetricsOverride",
                        width=width,
                        height=900,
                        deviceScaleFactor=scale,
                        mobile=size == "phone",
                    )
                    browser.call(
                        "Emulation.setEmulatedMedia",
                        features=[{"name": "prefers-color-scheme", "value": theme}],
                    )
                    browser.open(file)
                    shot = browser.call(
                        "Page.captureScreenshot", captureBeyondViewport=True, format="png"
                    )
                    picture = base64.b64decode(shot["data"])
                    (out / f"{name}-{size}{'-dark' * (theme == 'dark')}.png").write_bytes(picture)
            browser.call("Emulation.clearDeviceMetricsOverride")
            printed = browser.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)
            (out / f"{name}-print.pdf").write_bytes(base64.b64decode(printed["data"]))
    finally:
        browser.close()
        shutil.rmtree(profile, ignore_errors=True)
    print(
        f"{len(list(out.glob('*.png')))} pictures and {len(list(out.glob('*.pdf')))} PDFs in {out}: look at them."
    )


if __name__ == "__main__":
    main(Path("screenshots").resolve())
