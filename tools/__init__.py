"""Programs that make or check parts of the repository; no part of the package."""
