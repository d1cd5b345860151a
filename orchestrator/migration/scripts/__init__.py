"""The parts of a script around the training: launchers, exported variables, PBS lines, and a program's options."""
