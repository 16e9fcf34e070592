"""``moldau sim``: runs whole clusters in one process, on virtual time, network and disk, from one seed."""
