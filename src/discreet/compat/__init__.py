"""Other libraries' names on top of discreet: `discreet.compat.d3p`."""
