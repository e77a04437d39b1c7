"""What the service tells of itself: event logs and the report made of them, the status, explanations."""
