"""From click logs to a better model: training again, the gate, and going live."""
