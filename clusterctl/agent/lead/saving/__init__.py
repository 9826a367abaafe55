"""The lead's part in models and checkpoints: when cuts are made, what is complete, what stays, what is copied. Pure."""
