"""Saves and loads the state of a PyTorch training with the engine of ckptbench.

>>> import ckptbench.checkpoint as checkpoint
>>> checkpoint.save("/lustre/run/step-100", {"model": model, "optimizer": optimizer}, async_checkpoint=True)
>>> checkpoint.load("/lustre/run/step-100", {"model": model, "optimizer": optimizer})
"""
