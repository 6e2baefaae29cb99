"""The learners' side of the syncer: sessions, pushes, pulls, and checks of what learners claim."""
