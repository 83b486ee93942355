"""What several kinds of target need: copies of threads, paged memory, images."""
