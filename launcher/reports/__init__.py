"""What a run came to, and how runs compare: one page that needs nothing but a browser."""
