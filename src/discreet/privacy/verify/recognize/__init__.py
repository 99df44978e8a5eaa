"""Recognition: patterns that programs write by hand, in place of the markers of `discreet.mechanisms`.

The walk knows what each primitive does. A few things follow only from several equations together:
that a row was divided by its own norm, that noise changes with the iteration as the bound does,
that the rows taken in different iterations are disjoint. A fact about the first equation travels
with the value (`_facts`, and fields of `_domain.Private`) until the last one uses it.

Sound by three habits. A fact is a claim like any other, true of both runs, and refers to values by
name, so that it applies to no other value. Only the rules named here keep a fact; after any other
primitive it is gone. And what is recognized gives the same kinds of claims as a marker does, so
nothing later depends on how a program was written: without this folder programs lose their proof,
and no proof becomes wrong.

In reading order; the list in `discreet.privacy.verify` has their places among the other files:

    _facts         what values carry: norms, numbers by iteration, folded axes
    _clipping      clipping by a norm that the program computes
    _comparisons   tests for NaN and infinity; one-hot encodings
    _slices        rows taken by number, and the rows of one iteration
    _counters      integers that count iterations
    _schedules     noise or bounds that change with the iteration
    _histograms    rows added at an index of their own
    _folds         records that `vmap` merged with another axis
"""
