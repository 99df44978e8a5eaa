"""Tables about people: schemas and records, and what is counted, fitted, scored and synthesized from them.

Imports from `discreet.methods` and `discreet.privacy`. `models`, `planning` and `synthetic` import
no reader of tables: what they make follows from a schema and releases. In reading order; each
imports only from those before it:

    tables           schemas; tables in files and in memory to arrays of records
    private_schema   bounds and categories bought from the data
    models           ready-made models, and levels of columns
    marginals        noisy counts of cross tables; `describe`; mixtures fitted to counts
    estimators       scikit-learn's interface
    formulas         regressions by a formula, as in brms and Bambi; `regress`
    criticism        a fit against released counts of its table
    scores           private scores of a fit, and the choice among fits
    synthetic        synthetic twins, and their use
    planning         dry runs on invented tables
"""
