"""Simulated Sparks: containers that boot systemd, answer SSH and look like a DGX Spark.

Standard library only; Docker is driven through its command line.
"""
