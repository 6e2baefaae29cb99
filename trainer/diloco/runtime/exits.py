"""Exit codes of every diloco process: supervisors and operators act on them, so they stand in one place."""

from typing import Final

EXIT_OK: Final = 0
"""Done, or stopped as asked."""
EXIT_UNEXPECTED: Final = 1
"""A fault of the program or its host: starting it again may help."""
EXIT_BAD_INPUT: Final = 2
"""The manifest, the data, a file or an address is wrong: starting it again does not help."""
EXIT_REFUSED: Final = 3
"""The syncer will not have this process (superseded, unknown, given up): starting it again does not help."""
EXIT_JOB_FAILED: Final = 4
"""The job is over, and it failed: starting it again does not help."""
EXIT_DOES_NOT_FIT: Final = 5
"""``diloco plan``: the links do not carry the job, or it cannot be told."""
EXIT_LEASE_LOST: Final = 5
"""``diloco-operator``: another one may be at work; started again, this one waits its turn."""
