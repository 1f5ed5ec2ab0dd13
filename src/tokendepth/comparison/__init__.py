"""Runs side by side: loss against layers, FLOPs and seconds, paired by seed."""
