"""Methods of inference, each a private act: gradient steps, private Newton, noisy moments.

Imports from `discreet.privacy`. Models and arrays of records are arguments here; schemas and files
are a storey further up. In reading order; each imports only from those before it:

    inference_data   draws for ArviZ
    plots            pictures of draws and of released numbers
    predict          predictions from draws
    optimizers       optimizers beside those of NumPyro and Optax
    inference        `DPSVI`, `DPSGLD`, `OnePosteriorSample`: objective, step, loop and results
    newton           posteriors from a few noisy gradients
    moments          linear regression from noisy sums of products
    choose           which method, which plan, and why; `fit`
    audit            attacks on a method: lower bounds on its ε
"""
