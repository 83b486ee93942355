"""Apps on iOS devices, through their debugserver."""
