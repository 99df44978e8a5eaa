"""Other libraries' interfaces, implemented with discreet: `discreet.compat.d3p`."""
