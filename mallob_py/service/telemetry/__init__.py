"""The service's reports on itself: event logs, tables made from event logs, the status, explanations."""
