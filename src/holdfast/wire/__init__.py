"""What goes over a wire: shapes, the table of operations, and errors. Client and server share it.

Nothing here does any work. The table (operations.py) is written once; HTTP routes, the OpenAPI
file, the gRPC services and the client all come out of it.
"""
