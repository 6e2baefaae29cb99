"""The link to the syncer: session, pushes, pulls."""
