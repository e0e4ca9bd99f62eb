"""The pages that Peerglass writes: the report, the tear sheet, a night, a sweep and the explorer."""
