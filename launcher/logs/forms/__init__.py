"""The forms of a log: each claims the lines that it can read, and makes events of them (`reading.Form`)."""
