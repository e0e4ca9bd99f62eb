"""What leaves a night for people and machines: alerts, and metrics for Prometheus."""
