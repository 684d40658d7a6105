"""Outlets that give attempts to a scheduler or to another host, and hear of them by asking.

scheduler   What differs between the kinds: the protocol Scheduler, and the states that it tells.
"""
