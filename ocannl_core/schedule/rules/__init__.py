"""Default schedules, chosen by rules and a cost model of the processor."""
