"""Interfaces: the report as a page, d3p's names, and the command line.

Imports from all storeys, and no other storey imports from it. In reading order; each imports only
from those before it:

    page     a statement and its results as one page in HTML
    compat   d3p's interface: `compat.d3p`
    cli      the command `discreet`
"""
