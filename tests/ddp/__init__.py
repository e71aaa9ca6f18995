"""The page docs/scale.md: its loops on two processes, and its gradients against those of one.

two_ranks                 what each of the processes does
test_lightning_and_ddp    starts them once, and compares
"""
