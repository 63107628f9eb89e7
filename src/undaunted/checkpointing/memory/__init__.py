"""The arena: memory that holds the image of the file to be written."""
