"""Real servers that tests talk to, one file each: VARIABLE (an environment variable that tests ask for), Missing,
start(folder) -> {variable: value}, and stop(folder), which ends everything, also after half a start."""
