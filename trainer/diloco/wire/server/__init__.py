"""The syncer's side of the wire."""
