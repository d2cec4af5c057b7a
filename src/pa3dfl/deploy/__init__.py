"""Federations on several machines: the folder, the programs of server and nodes, and their access control.

Imports every room but `cli`. Needs the extra `pa3dfl[flower]`.
"""
