"""What can be known of a run before anything starts, one file for each thing that is looked at."""
