"""Parts of the simulation of streams groups: a member, the rules, and a story that puts both into a cluster."""
