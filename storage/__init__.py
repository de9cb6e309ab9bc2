"""One queue's messages: what a message is, and the backing queues that keep them."""
