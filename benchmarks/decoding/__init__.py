"""What decoding costs, and against what."""
