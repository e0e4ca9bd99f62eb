"""Questions to signals and deliveries that reveal look-ahead: of the guard, the audit and the nights."""
