"""What the operator decides: pure functions of what was observed and of the time, one decision per file.

It must not know how anything is observed or carried out; import-linter enforces both.
"""
