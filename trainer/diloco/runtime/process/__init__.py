"""What a process is to its host: exit codes, limits, signs of life."""
