"""Values: messages, policies, time and text. No I/O."""
