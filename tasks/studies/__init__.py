"""Studies: questions that are registered before they run, their worlds, and the records of what was found."""
