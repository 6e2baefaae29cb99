"""Names of learners and objects, and the files that name learners."""
