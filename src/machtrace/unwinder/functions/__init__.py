"""Where the functions of an image begin and end."""
