"""How far attention can be believed as an explanation: measures of faithfulness, and the verdict."""
