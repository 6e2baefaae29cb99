"""Keys, certificates and the files that they are in."""
