"""Metrics and their intervals: errors, calibration, confusion, verdicts. Nothing here reads or writes files."""
