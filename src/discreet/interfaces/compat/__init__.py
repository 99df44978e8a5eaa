"""Other libraries' interfaces, implemented with discreet: `discreet.interfaces.compat.d3p`."""
