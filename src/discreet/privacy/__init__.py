"""What ε rests on: keys, sums, noise, their proof, and the order in which a private act happens.

The ground (`discreet._garbage`, `_dp_accounting`, `_jax`, `_numpyro`, `_validate`, `storage`) is
all that this storey stands on. In reading order; each imports only from those before it:

    random       ChaCha20 keys, subkeys by purpose, Gaussian and discrete draws
    accounting   events to ε and δ, calibration, risk in words, filters; no JAX
    sampling     samplers of batches, and their events
    gradients    per-record loss to a clipped sum with a known bound
    mechanisms   the privacy primitives; only these add noise
    verify       proofs of programs; knows no plan, fit or engine
    clipping     rules for the clipping norm
    plan         `PrivacyPlan`: public numbers and what they cost
    report       the statement: facts first, then prose
    ledger       budgets of tables, on the disk
    released     what all results have: saved, loaded, shown
    act          the order of every private act; claims keys and debits
    query        one exact sum of bounded rows, proved and released with noise

Names are found as `dp.accounting.profile`, or imported: `from discreet.privacy.accounting import
profile`.
"""
