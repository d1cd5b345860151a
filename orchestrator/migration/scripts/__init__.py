"""What a script says around a training: launchers, exported variables, PBS lines, and a program's options."""
