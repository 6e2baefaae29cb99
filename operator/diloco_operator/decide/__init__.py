"""What the operator decides, one decision a file: pure functions of what was observed and of the time.

It must not know how anything is observed or carried out.
"""
