"""What of a user's pod settings goes into pods."""
