"""Benchmarks: every figure is a ratio of two programs that ran in turn in one process.

`python -m benchmarks` runs them all; `python -m benchmarks.vae` (or another name) runs one.
"""
