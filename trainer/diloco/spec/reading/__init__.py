"""From a file's text to a checked job."""
