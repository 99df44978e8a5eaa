"""A fit of converted records takes them where they lie, and is the fit of the same records in memory."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer.autoguide import AutoNormal

import discreet as dp
from discreet.methods.inference._records import take_apart
from discreet.tabular.models import logistic_regression
from discreet.tabular.tables import convert, encode, open_records, read_table, schema_from_bounds

ROWS = 700
SCHEMA = schema_from_bounds(
    "age=0:100,visits=0:50,region=north|south|east,smoker=no|yes", target="smoker"
)


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    cells = zip(
        rng.uniform(0, 100, ROWS),
        rng.integers(0, 51, ROWS),
        rng.choice(["north", "south", "east"], ROWS),
        rng.choice(["no", "yes"], ROWS),
        strict=True,
    )
    path = tmp_path / "table.csv"
    path.write_text(
        "age,visits,region,smoker\n" + "".join(f"{a:.3f},{v},{r},{s}\n" for a, v, r, s in cells)
    )
    return path


@pytest.mark.usefixtures("quick_compilation")
def test_the_fit_is_that_in_memory_bit_for_bit_and_leaves_the_file_as_it_was(table) -> None:
    path = table.with_suffix(".records")
    convert(table, SCHEMA, path)
    before = (path / "x-00").read_bytes()
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(rate=0.1),
        clipping_norm=1.0,
        noise_multiplier=1.0,
        num_steps=20,
        num_records=ROWS,
    )
    dpsvi = dp.DPSVI(
        logistic_regression, AutoNormal(logistic_regression), numpyro.optim.Adam(0.02), plan=plan
    )
    results = []
    for records in (encode(read_table(table, SCHEMA), SCHEMA), open_records(path)):
        # A seeded key may be used again.
        results.append(dpsvi.run(dp.random.key(5), records.x, records.y, progress_bar=False))
    memory, mapped = results
    for name, value in memory.params.items():
        np.testing.assert_array_equal(value, mapped.params[name])
    np.testing.assert_array_equal(memory.losses, mapped.losses)
    assert (path / "x-00").read_bytes() == before


@pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="other devices have a memory of their own"
)
def test_the_arrays_are_the_file_itself(table) -> None:
    records = convert(table, SCHEMA, table.with_suffix(".records"))
    (leaf,) = take_apart((records.x,), {}).leaves
    assert leaf.unsafe_buffer_pointer() == records.x.ctypes.data
    assert leaf.dtype == jnp.float32
    # What its owner may still change is copied, or the records would change while they are fitted.
    own = np.array(records.x)
    assert take_apart((own,), {}).leaves[0].unsafe_buffer_pointer() != own.ctypes.data


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_a_program_that_overwrites_its_arguments_cannot_overwrite_the_file(table) -> None:
    path = table.with_suffix(".records")
    records = convert(table, SCHEMA, path)
    before = (path / "x-00").read_bytes()
    wanted = np.array(records.x) * 2
    (leaf,) = take_apart((records.x,), {}).leaves
    doubled = jax.jit(lambda x: x * 2, donate_argnums=0)(leaf)
    np.testing.assert_array_equal(doubled, wanted)
    np.testing.assert_array_equal(records.x * 2, wanted)
    assert (path / "x-00").read_bytes() == before
