"""Robustness: the whole system under random faults, its clients' histories, and checks over them.

`./dev test tests/faults/robustness --minutes 10 --seed 7` draws the same faults at the same moments again. How they fall
among the calls of the clients is up to the machine.
"""
