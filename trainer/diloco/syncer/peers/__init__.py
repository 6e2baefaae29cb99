"""The learners as the syncer sees them: their sessions, what they bring and fetch, and what of it is believed."""
