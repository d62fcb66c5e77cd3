"""Models that come with the library."""
