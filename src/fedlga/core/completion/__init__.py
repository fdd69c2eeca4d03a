"""By how much a straggler's update falls short: the scales that the policy `complete` multiplies it by."""
