"""The learners: who is present, planned, elastic or in quarantine, and what they evaluate."""
