"""The syncer's status, metrics and HTTP pages."""
