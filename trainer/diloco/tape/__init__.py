"""The record of every event and decision of a syncer."""
