"""The error with which a syncer stops."""

from diloco.runtime.process.exits import EXIT_BAD_INPUT


class SyncerError(RuntimeError):
    """The syncer cannot start or go on; the text is the one line that the user sees."""

    def __init__(self, text: str, exit_code: int = EXIT_BAD_INPUT) -> None:
        super().__init__(text)
        self.exit_code = exit_code
