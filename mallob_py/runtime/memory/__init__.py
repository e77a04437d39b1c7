"""What workers use, what the host has left, and who gives way when that is too little."""
