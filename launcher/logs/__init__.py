"""Logs that other programs wrote, read as the events of a run: verl, TRL and Hugging Face, ms-swift, and lines of a
few common forms. Nothing of them is trusted; what cannot be read is passed over."""
