"""The commands of the command line, one file each; ``fastfed.app.cli`` registers them."""
