"""Names of Megatron Bridge and Megatron-LM, for loops that are written for them.

    from undaunted.integrations.megatron import fault_tolerance

Import the modules; none of them needs Megatron. docs/megatron.md says which of them takes the place
of what.
"""
