"""What a report shows: the results of one run as frames and dataclasses with checked columns."""
