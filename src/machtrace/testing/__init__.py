"""Public fakes and hypothesis strategies."""
