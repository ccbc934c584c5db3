"""What is measured, each with the parties it is measured on."""
