import signal

# Whoever runs the tests in the background of a shell has them ignore SIGINT, and every process that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
