"""The methods of the papers: formulas and fits over rows of words, without studies and tasks."""
