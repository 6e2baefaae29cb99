"""Reads the documents of a corpus, one after the other, from files of several formats.

Memory is bounded whatever the size of a file: tables are read in batches of rows, JSON by lines of limited length, and
plain files in pieces. Nothing is unpickled: a folder that `datasets` saved is read as Arrow.
"""

from diloco.learner.data.documents.files import DocumentFiles, find_document_files

__all__ = ["DocumentFiles", "find_document_files"]
