"""What the operator decides: pure functions of what was observed and of the time, one decision per file.

Nothing here depends on how jobs are observed or plans are carried out; import-linter enforces it.
"""
