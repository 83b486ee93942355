"""Parts shared by several kinds of target: copies of threads, paged memory, images."""
