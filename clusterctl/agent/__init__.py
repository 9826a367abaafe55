"""The program on the node: standard library only, any python3 from 3.9.

It is shipped to the nodes with `clusterctl.common` and `clusterctl.runtime`, and imports only the first.
"""
