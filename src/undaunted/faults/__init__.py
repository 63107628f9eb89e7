"""How each fault is made: plans, triggers and injectors."""
