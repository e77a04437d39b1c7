"""The service's reports on itself: event logs and the tables made of them, the status, explanations."""
