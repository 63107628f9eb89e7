"""Reading and writing: blocks of files, and the two kinds of storage."""
