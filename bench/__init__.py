"""How fast Holdfast is, beside the hand-written limit of its store and beside its peers."""
