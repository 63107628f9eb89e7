"""A second opinion on odd results: computed again at the same place, then at another one."""
