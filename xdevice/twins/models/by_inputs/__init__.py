"""Runs two models on one batch (`inputs=`): to tell which layer is which, and to compare what they return."""
