"""One process that serves a store over HTTP and gRPC: `holdfast serve`.

The table of operations (wire/operations.py) says what there is, service.py does it, http.py and
rpc.py are the two doors.
"""
