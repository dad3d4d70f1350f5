"""Click logs: reading them, keeping them without personal data, judging them, and turning them into preference pairs."""
