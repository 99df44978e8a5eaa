"""Fits of whole tables that never ran: their parameters are made up."""

from pathlib import Path
from typing import Any

import numpy as np

from discreet.methods.inference import DPSVIResult, Trace
from discreet.methods.inference._forms import ArrayForm, Form
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.report import make_statement
from discreet.privacy.sampling import FullBatch
from discreet.tabular.models import MixtureOfProducts
from discreet.tabular.synthetic import write_fitted
from discreet.tabular.tables import Schema

PLAN = PrivacyPlan(
    sampling=FullBatch(), clipping_norm=1.0, noise_multiplier=30.0, num_steps=4, num_records=50
)


def made_up_result(
    model: MixtureOfProducts, plan: PrivacyPlan = PLAN, **changes: Any
) -> DPSVIResult:
    """Make up a result that a fit of the model could have given."""
    levels, rng = sum(model.sizes), np.random.default_rng(0)
    shapes = {
        "component": (model.components,),
        "base": (levels,),
        "deviations": (model.components, levels),
    }
    params = {
        f"{name}_auto_loc": rng.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    params |= {
        f"{name}_auto_scale": np.full(shape, 0.1, np.float32) for name, shape in shapes.items()
    }
    steps = plan.num_steps
    fields: dict[str, Any] = {
        "params": params,
        "last_params": params,
        "losses": np.zeros(steps),
        "clipping_norms": np.ones(steps),
        "shares": np.full((steps, 2), [0.01, 1.0]),
        "trace": Trace(np.arange(1), np.zeros((1, 1), np.float32)),
        "statement": make_statement(plan, steps_completed=steps, reproducible=False),
        "plan": plan,
        "steps_completed": steps,
        "_form": Form(
            ((ArrayForm((len(model.schema.columns),), "int32"),), {}),
            tuple(shapes),
            keeps_local=False,
        ),
    }
    return DPSVIResult(**{**fields, **changes})


def fitted(folder: Path, schema: Schema, **changes: Any) -> Path:
    """The folder of such a fit."""
    model = MixtureOfProducts(schema, components=2, slices=4)
    result = made_up_result(model, **changes)
    write_fitted(folder, result, model)
    (folder / "statement.json").write_text(result.statement.to_json())
    return folder
