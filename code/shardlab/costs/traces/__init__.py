"""Behind `replay`: programs that nobody ran, who meets whom in a trace, who shares a hop, who waits for whom."""
