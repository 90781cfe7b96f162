"""From a record to the gate: sources, decoding, admission, fan-out."""
