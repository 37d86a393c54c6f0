"""The forms of a log: each makes events of the lines that it can read (`reading.Form`)."""
