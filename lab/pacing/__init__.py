"""What automatic pacing does at sites of many kinds, in simulated time.

`python -m lab.pacing` writes `report.txt`, so that a change of the law is a diff.
"""
