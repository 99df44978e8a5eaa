"""`pip install discreet` brings no reader of tables, shell, template engine or cryptography: the core works without them.

Each test runs in a process in which the packages of the extras cannot be found.
"""

import subprocess
import sys

import pytest

BLOCKED = ("pyarrow", "sklearn", "typer", "click", "rich", "jinja2", "cffi", "cryptography")
WITHOUT = f"""
import sys
import importlib.util

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.split(".")[0] in {BLOCKED} else find(name, package)
"""


def run(code):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, check=False
    )


def test_the_core_imports_and_fits_without_the_extras() -> None:
    done = run("""
import discreet as dp
for name, module in dp._modules().items():
    if name not in ("cli", "estimators"):
        importlib.import_module(module)
import numpy as np, numpyro, numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal
def model(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
plan = dp.PrivacyPlan.calibrate(
    epsilon=1.0, delta=1e-5, num_records=50, num_steps=3, sampling=dp.FullBatch(), clipping_norm=1.0)
result = dp.DPSVI(model, AutoNormal(model), numpyro.optim.Adam(0.1), plan=plan).run(
    dp.random.key(), np.zeros(50, np.float32), progress_bar=False)
print(result.steps_completed, "Privacy statement" in str(result.statement))
print(dp.random.normal(dp.random.key(), (2**14,)).shape)  # long enough to be asked of OpenSSL
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3", "True", "(16384,)"]
    assert "pip install 'discreet[fast]' brings it" in done.stderr


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("from discreet.interfaces.cli import main; main()", "cli"),
        ("import discreet.tabular.estimators", "tables"),
        ("import discreet as dp; dp.tables.read_table", "tables"),
        (
            "import discreet as dp\nfrom discreet.interfaces.page import write_report\n"
            "from discreet.privacy.report import make_statement\n"
            "plan = dp.PrivacyPlan(sampling=dp.FullBatch(), clipping_norm=1.0, noise_multiplier=9, num_steps=1, num_records=9)\n"
            "write_report('never.html', make_statement(plan, steps_completed=1, reproducible=False))",
            "cli",
        ),
    ],
)
def test_what_is_missing_names_its_extra(code, extra) -> None:
    done = run(code)
    assert done.returncode == 1
    assert f"pip install 'discreet[{extra}]'" in done.stderr
