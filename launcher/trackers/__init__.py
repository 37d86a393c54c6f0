"""Trackers that show a run's metrics: TensorBoard, W&B, trackio, MLflow, SwanLab, a JSONL file.

A tracker is a reader of the run's event log, in a process of its own (`python -m launcher.trackers.sending`): training
never calls it. What it has sent is remembered in `trackers/NAME.json` in the run's folder, so a tracker that was down,
or began late, sends what is missing, and nothing twice.
"""
