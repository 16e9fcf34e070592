"""Pure code of client metrics: when to ask and to push, and what a push holds."""
