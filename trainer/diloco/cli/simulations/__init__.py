"""Commands that simulate jobs in virtual time."""
