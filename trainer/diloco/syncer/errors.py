"""What can go wrong with a syncer so that it cannot go on: one class, one clear line each."""

from diloco.runtime.exits import EXIT_BAD_INPUT


class SyncerError(RuntimeError):
    """The syncer cannot start or go on; the text is the one line that a user is shown."""

    def __init__(self, text: str, exit_code: int = EXIT_BAD_INPUT) -> None:
        super().__init__(text)
        self.exit_code = exit_code
