"""The parts of a script around a training: launchers, exported variables, PBS lines, and a program's options."""
