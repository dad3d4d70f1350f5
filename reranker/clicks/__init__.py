"""Click logs: read, kept without personal data, examined, and turned into preference pairs."""
