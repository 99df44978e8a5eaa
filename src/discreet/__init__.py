"""Differentially private probabilistic programming on JAX and NumPyro."""
