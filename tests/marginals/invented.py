"""Releases of a table without noise, and with invented noise of the plan's size, which can be drawn many times."""

import dataclasses

import jax
import numpy as np
import pyarrow

import discreet as dp
from discreet.privacy.verify import Certificate
from discreet.tabular.marginals import Marginals, MarginalsPlan
from discreet.tabular.marginals._programs import PARTS


def certificate(plan: MarginalsPlan, rows: int = 10) -> Certificate:
    """What is proved of the program of a release, which counts so many records itself."""
    each = (rows, plan.max_rows) if plan.max_rows > 1 else (rows,)
    counted = jax.ShapeDtypeStruct((plan.num_counts,), np.int64)
    levels = jax.ShapeDtypeStruct((*each, len(plan.all_sizes)), np.int32)
    mask = jax.ShapeDtypeStruct((rows,), bool)
    if not plan.width:
        return plan.query().certificate(dp.random.key(), counted, levels, mask)
    summed = jax.ShapeDtypeStruct((plan.width,), np.int64)
    values = jax.ShapeDtypeStruct((rows, plan.width), np.int64)
    return plan.query().certificate(dp.random.key(), counted, summed, levels, values, mask)


def exact(plan: MarginalsPlan, table) -> Marginals:
    """The counts and sums of a table, computed without the library's own."""
    levels, counts, sums = plan.levels.encode(table), [], []
    place = {column.name: number for number, column in enumerate(plan.schema.columns)}
    for columns in plan.columns:
        cells = np.zeros([plan.levels.sizes[c] for c in columns])
        np.add.at(cells, tuple(levels[:, c] for c in columns) or ..., 1 if columns else len(levels))
        counts.append(cells.ravel())
    table = pyarrow.table(table)
    fine = [np.zeros(0)]
    for (name, *by), cells in zip(plan.fine, plan.fine_cells, strict=True):
        own = plan.schema.columns[place[name]]
        numbers = np.nan_to_num(table[name].to_numpy(zero_copy_only=False).astype(float))
        edges = plan.levels.part_edges(own, PARTS)
        part = np.searchsorted(edges, numbers, side="right") - 1
        code = np.minimum(part, len(edges) - 2)
        if own.may_be_missing:
            code[table[name].is_null().to_numpy()] = len(edges) - 1
        for each in by:
            code = code * plan.levels.sizes[place[each]] + levels[:, place[each]]
        fine.append(np.bincount(code, minlength=cells))
    for (name, *by), cells in zip(plan.sums, plan.sum_cells, strict=True):
        low, high = plan.schema.columns[place[name]].limits
        numbers = table[name].cast(
            "double" if not pyarrow.types.is_date32(table[name].type) else "int32"
        )
        z = (2 * numbers.to_numpy().astype(float) - low - high) / (high - low)
        cell = np.zeros(len(z), int)
        for each in by:
            cell = cell * plan.levels.sizes[place[each]] + levels[:, place[each]]
        sums += [np.bincount(cell, np.nan_to_num(x), cells) for x in (z, 1 - z**2)]
    counted = np.concatenate(counts)
    sums = np.concatenate([np.zeros(0), *sums])
    return Marginals(
        plan,
        counted,
        plan.state(reproducible=True),
        sums,
        np.zeros(sum(plan.person_cells)),
        np.concatenate(fine),
    )


def noisy(released: Marginals, rng: np.random.Generator, times: float = 1.0) -> Marginals:
    """The same with noise of the plan's size, or of so many times that."""
    plan = released.plan
    whole = np.concatenate([released.counts, released.fine, released.sums, released.persons])
    size = times * plan.noise / plan.all_weights
    scaled = rng.laplace(0, np.sqrt(0.5), len(whole)) if plan.laplace else None
    whole = whole + size * (rng.standard_normal(len(whole)) if scaled is None else scaled)
    counts, fine, sums, persons = plan.apart(whole)
    return dataclasses.replace(released, counts=counts, fine=fine, sums=sums, persons=persons)
